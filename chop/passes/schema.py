"""Options that are a Python signature: read, checked, and written down from there."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.options import NodeChoice, PathUse, Problem, path_use
from chop.registry import nearest

Law = Callable[[Mapping[str, Any]], Iterable[Problem]]
Chooses = Callable[[Mapping[str, Any]], Iterable[NodeChoice]]
NO_ARGS: Mapping[str, Any] = {}


class PassArgsError(TypeError, ValueError):
    """Options that a pass does not take, or a graph that is not ready for it."""


class HasOptions:
    """A function whose keyword-only parameters are the options that it can be called with."""

    subject = "graph"  # what its first parameter is called

    def __init__(self, fn: Callable[..., dict[str, Any] | None], name: str) -> None:
        self.fn, self.name = fn, name
        self.signature = inspect.signature(fn)
        first, *options = self.signature.parameters.values()
        assert first.name == self.subject, f"pass {name!r} takes `{self.subject}` first"
        self.options = {p.name: p for p in options if p.kind is not p.VAR_KEYWORD}
        self.open_ended = any(p.kind is p.VAR_KEYWORD for p in options)
        self._laws: list[Law] = []
        self._chosen: list[Chooses] = []

    def check(self, pass_args: Mapping[str, Any] | None) -> dict[str, Any]:
        """The options to run with; the caller's dict is read, never changed."""
        checked, problems = self._read(pass_args)
        if problems:
            raise PassArgsError(self._sentence(problems[0].text))
        return checked

    def problems(self, pass_args: Mapping[str, Any] | None) -> list[Problem]:
        """All that is wrong with options, as far as can be said without a graph."""
        return self._read(pass_args)[1]

    def misfits(self, subject: Any, pass_args: Mapping[str, Any]) -> list[Problem]:
        """Names in options that nothing in this graph has, though the options are fine."""
        found = (choice.problem_in(subject) for choice in self._choices(self.check(pass_args)))
        return [problem for problem in found if problem is not None]

    def law(self, law: Law) -> Law:
        """Add what options have to obey beyond their types; `law` is given valid ones only.

        It need not find those without a default, and it does not know the graph.
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
        try:
            hints = typing.get_type_hints(self.fn)
        except NameError:  # of a type that is imported for type checkers only
            return False
        needed = [hints.get(o.name) for o in self.options.values() if o.default is o.empty]
        return any(h is MaseGraph or typing.get_origin(h) is Callable for h in needed)

    @functools.cached_property
    def paths(self) -> Mapping[str, PathUse]:
        """The options that name files or folders, and whether those are read or written."""
        hints = typing.get_type_hints(self.fn, include_extras=True)
        uses = {name: path_use(hints.get(name)) for name in self.options}
        return {name: use for name, use in uses.items() if use is not None}

    def _read(self, pass_args: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[Problem]]:
        given = NO_ARGS if pass_args is None else pass_args
        if not isinstance(given, Mapping):
            return {}, [
                Problem(
                    "",
                    f"pass {self.name!r} takes its options as a dict, not {type(given).__name__}; "
                    f"options are {self.describe_options()}",
                )
            ]
        problems = list(self._strange_or_missing(given))
        checked: dict[str, Any] = {}
        for key, value in given.items():
            if key in self.options or self.open_ended:
                checked[key], wrong = self._checked(key, value)
                problems += wrong
        bad = {problem.key.partition(".")[0] for problem in problems}
        valid = {key: value for key, value in checked.items() if key not in bad}
        # a law about all of the options says little of some of them
        return checked, problems + [p for p in self._unlawful(valid) if p.key or not problems]

    def _strange_or_missing(self, given: Mapping[str, Any]) -> Iterator[Problem]:
        for key in given:
            if key not in self.options and not self.open_ended:
                near = nearest(key, self.options)
                hint = f"; did you mean {near!r}?" if near else ""
                yield Problem(
                    key,
                    f"pass {self.name!r} has no option {key!r}{hint} "
                    f"(options: {self.describe_options()})",
                )
        for option in self.options.values():
            if option.default is option.empty and option.name not in given:
                yield Problem(
                    option.name,
                    f"pass {self.name!r} needs the option {option.name!r} "
                    f"(options: {self.describe_options()})",
                )

    def _unlawful(self, valid: Mapping[str, Any]) -> Iterator[Problem]:
        options = self._with_defaults(valid)
        for law in self._laws:
            yield from law(options)
        for choice in self._choices(valid):
            problem = choice.problem()
            if problem is not None:
                yield problem

    def _choices(self, options: Mapping[str, Any]) -> Iterator[NodeChoice]:
        for chosen in self._chosen:
            yield from chosen(self._with_defaults(options))

    def _with_defaults(self, options: Mapping[str, Any]) -> dict[str, Any]:
        defaults = {o.name: o.default for o in self.options.values() if o.default is not o.empty}
        return defaults | dict(options)

    def _sentence(self, text: str) -> str:
        """A problem for those who do not see which pass it is of."""
        return text if f"pass {self.name!r}" in text else f"pass {self.name!r}: {text}"

    def written_options(self) -> list[str]:
        """Each option as it stands in the signature: `num_samples: int = 512`."""
        return [written(option) for option in self.options.values()] + ["…"] * self.open_ended

    def describe_options(self) -> str:
        """All options, for a message."""
        return ", ".join(self.written_options()) or "none"

    def _checked(self, key: str, value: Any) -> tuple[Any, list[Problem]]:
        from pydantic import ValidationError

        adapter = self._adapters.get(key)
        if adapter is None:
            return value, []
        annotation = str(self.options[key].annotation)
        if isinstance(value, str) and annotation.startswith("Sequence["):
            value = (value,)  # one name counts as a list of one
        try:
            return adapter.validate_python(value, strict=True), []
        except ValidationError as error:
            # of several types, each has its own complaint about the same value
            several = "|" in annotation or key in self.paths
            found = error.errors()[: 1 if several else None]
            return value, [self._wrong(key, entry) for entry in found]

    def _wrong(self, key: str, entry: Mapping[str, Any]) -> Problem:
        path = ".".join([key, *(str(step) for step in entry["loc"])])
        return Problem(
            path,
            f"option {path!r} is {_shown(entry['input'])}, but {entry['msg']} "
            f"(option: {written(self.options[key])})",
        )

    @functools.cached_property
    def _adapters(self) -> dict[str, Any]:
        """Made at the first call, so that importing passes does not import pydantic."""
        from pydantic import ConfigDict, TypeAdapter

        hints = typing.get_type_hints(self.fn, include_extras=True)
        config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)

        def adapter(hint: Any) -> Any:
            own = hasattr(hint, "model_config") or hasattr(hint, "__pydantic_config__")
            return TypeAdapter(hint, config=None if own else config)

        return {key: adapter(hints[key]) for key in self.options if key in hints}


def _shown(value: object) -> str:
    """A value in a message: one line, not too long, and no numbers of a tensor."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:79]}…"


def written(option: inspect.Parameter) -> str:
    """`num_samples: int = 512`, as it stands in the signature."""
    # annotations are strings here, which str(option) would show in quotes
    default = "" if option.default is option.empty else f" = {option.default!r}"
    kind = option.annotation
    shown = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    shown = re.sub(r"Annotated\[(\w+), ([^\]]*)\]", _bounded, shown)
    return f"{option.name}: {shown}{default}"


BOUNDS = {"Ge": ">=", "Gt": ">", "Le": "<=", "Lt": "<"}


def _bounded(annotated: re.Match[str]) -> str:
    """`int >= 1` for `Annotated[int, Ge(1)]`."""
    bounds = re.findall(r"(\w+)\(([^)]*)\)", annotated[2])
    return f"{annotated[1]} " + " and ".join(f"{BOUNDS[name]} {limit}" for name, limit in bounds)
