"""The options of a pass: those of its signature, what they must obey, and the nodes they name."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from chop.ir.graph.mase_graph import MaseGraph
from chop.options import REQUIRED, Option, Options, Problem, options_of, takes_any
from chop.passes.options import NodeChoice, PathUse, path_use

Law = Callable[[Mapping[str, Any]], Iterable[Problem]]
Chooses = Callable[[Mapping[str, Any]], Iterable[NodeChoice]]


class PassArgsError(TypeError, ValueError):
    """Options that a pass does not take, or a graph that is not ready for it."""


class HasOptions:
    """A function whose keyword-only parameters are the options that it can be called with."""

    subject = "graph"  # what its first parameter is called

    def __init__(self, fn: Callable[..., dict[str, Any] | None], name: str) -> None:
        self.fn, self.name = fn, name
        first = next(iter(inspect.signature(fn).parameters))
        assert first == self.subject, f"pass {name!r} takes `{self.subject}` first"
        self.open_ended = takes_any(fn)
        self._laws: list[Law] = []
        self._chosen: list[Chooses] = []

    @functools.cached_property
    def options(self) -> dict[str, Option]:
        options = options_of(self.fn)
        del options[self.subject]
        return options

    def options_elsewhere(self) -> Mapping[str, str]:
        """Return options that scripts may also give to this pass, and the pass that has each."""
        return {}

    def ignored(self, pass_args: Any) -> dict[str, str]:
        """Return the given options that only other passes have, and the pass that has each."""
        given = pass_args if isinstance(pass_args, Mapping) else {}  # a path, for some passes
        strange = [key for key in given if key not in self.options]
        elsewhere = self.options_elsewhere() if strange and not self.open_ended else {}
        return {key: elsewhere[key] for key in strange if key in elsewhere}

    def check(self, pass_args: Mapping[str, Any] | None) -> dict[str, Any]:
        """The options to run with; the caller's dict is read, never changed."""
        checked, problems = self._read(pass_args)
        if problems:
            raise PassArgsError(self._schema.sentence(problems[0].text))
        return checked

    def problems(self, pass_args: Mapping[str, Any] | None) -> list[Problem]:
        """Return all problems of options that can be found without a graph."""
        return self._read(pass_args)[1]

    def misfits(self, subject: Any, pass_args: Mapping[str, Any]) -> list[Problem]:
        """Return a problem for each name in valid options that does not exist in this graph."""
        problems = (choice.problem_in(subject) for choice in self._choices(self.check(pass_args)))
        return [problem for problem in problems if problem is not None]

    def law(self, law: Law) -> Law:
        """Add a check of options beyond their types; it gets only those that are valid.

        Options without a default may be missing, and the graph is not known.
        """
        self._laws.append(law)
        return law

    def chooses(self, chosen: Chooses) -> Chooses:
        """Say which options name nodes, so that they can be checked before the pass runs."""
        self._chosen.append(chosen)
        return chosen

    @functools.cached_property
    def python_only(self) -> bool:
        """Whether it needs an object that no file can hold."""
        needed = [o.hint for o in self.options.values() if o.default is REQUIRED]
        return any(h is MaseGraph or typing.get_origin(h) is Callable for h in needed)

    @functools.cached_property
    def paths(self) -> Mapping[str, PathUse]:
        """The options that name files or folders, and whether those are read or written."""
        uses = {name: path_use(option.hint) for name, option in self.options.items()}
        return {name: use for name, use in uses.items() if use is not None}

    @property
    def writes_files(self) -> bool:
        """Whether it writes to a path that an option names."""
        return PathUse.WRITTEN in self.paths.values()

    def written_options(self) -> list[str]:
        """Each option as it stands in the signature: `num_samples: int = 512`."""
        return self._schema.written()

    @functools.cached_property
    def _schema(self) -> Options:
        return Options(f"pass {self.name!r}", self.options, takes_any=self.open_ended, finite=True)

    def _read(self, pass_args: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[Problem]]:
        if pass_args and (ignored := self.ignored(pass_args)):
            pass_args = {key: value for key, value in pass_args.items() if key not in ignored}
        checked, problems = self._schema.read({} if pass_args is None else pass_args)
        bad = {problem.key.partition(".")[0] for problem in problems}
        valid = {key: value for key, value in checked.items() if key not in bad}
        # a law about all of the options says little of some of them
        return checked, problems + [p for p in self._unlawful(valid) if p.key or not problems]

    def _unlawful(self, valid: Mapping[str, Any]) -> Iterator[Problem]:
        options = self._with_defaults(valid)
        for law in self._laws:
            yield from law(options)
        problems = (choice.problem() for choice in self._choices(valid))
        yield from (problem for problem in problems if problem is not None)

    def _choices(self, options: Mapping[str, Any]) -> Iterator[NodeChoice]:
        for chosen in self._chosen:
            yield from chosen(self._with_defaults(options))

    def _with_defaults(self, options: Mapping[str, Any]) -> dict[str, Any]:
        defaults = {o.name: o.default for o in self.options.values() if o.default is not REQUIRED}
        return defaults | dict(options)
