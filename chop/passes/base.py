"""What a pass is: `(graph, pass_args) -> (graph, info)`, its options being a Python signature."""

from __future__ import annotations

import functools
import inspect
import logging
import re
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol

from torch import Tensor, fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.record import copied
from chop.passes.options import Choice, Problem
from chop.registry import Registry, UnknownName, nearest

logger = logging.getLogger(__name__)

Info = dict[str, Any]
Kind = Literal["analysis", "transform", "interface"]
Law = Callable[[Mapping[str, Any]], Iterable[Problem]]
NO_ARGS: Mapping[str, Any] = {}

# which pass fills in which part of the metadata
FILLED_BY = {
    "metadata": "init_metadata",
    "common": "add_common_metadata",
    "software": "add_software_metadata",
    "hardware": "add_hardware_metadata",
}


class PassArgsError(TypeError, ValueError):
    """Options that a pass does not take, or a graph that is not ready for it."""


class Pass(Protocol):
    """Anything that can be run on a graph: ours, or a function that you wrote by hand."""

    def __call__(
        self, graph: MaseGraph, pass_args: Any = None, /
    ) -> tuple[MaseGraph, Info] | MaseGraph | Info | None: ...


class GraphPass:
    """A registered pass. Calling it checks its options and what it needs, then runs it."""

    subject = "graph"  # what its first parameter is called

    def __init__(
        self,
        fn: Callable[..., Info | None],
        name: str,
        kind: Kind,
        needs: tuple[str, ...],
        new_nodes: bool = False,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.__qualname__: str = fn.__qualname__
        assert set(needs) <= FILLED_BY.keys(), f"pass {name!r} needs one of {list(FILLED_BY)}"
        self.fn, self.name, self.kind, self.needs = fn, name, kind, needs
        self.signature = inspect.signature(fn)
        first, *options = self.signature.parameters.values()
        assert first.name == self.subject, f"pass {name!r} takes `{self.subject}` first"
        self.options = {p.name: p for p in options if p.kind is not p.VAR_KEYWORD}
        self.open_ended = any(p.kind is p.VAR_KEYWORD for p in options)
        self.new_nodes = new_nodes
        self._laws: list[Law] = []
        self._chosen: list[Callable[[Mapping[str, Any]], Iterable[Choice]]] = []

    def __call__(
        self, graph: MaseGraph, pass_args: Mapping[str, Any] | None = None, **options: Any
    ) -> tuple[MaseGraph, Info]:
        """Run on `graph`; options come as a dict, or as keywords, which win."""
        checked = self.check({**(pass_args or {}), **options} if options else pass_args)
        self._check_ready(graph)
        start = time.perf_counter()
        try:
            info = self.fn(graph, **checked) or {}
        except (PassArgsError, UnknownName) as error:
            error.args = (self._sentence(str(error)),)
            raise
        logger.debug("pass %s took %.1f ms", self.name, 1e3 * (time.perf_counter() - start))
        return graph, info

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

    def chooses(self, chosen: Callable[[Mapping[str, Any]], Iterable[Choice]]) -> Any:
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

    def _choices(self, options: Mapping[str, Any]) -> Iterator[Choice]:
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
            found = error.errors()[: 1 if "|" in annotation else None]
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

    def _check_ready(self, graph: MaseGraph) -> None:
        if not isinstance(graph, MaseGraph):
            fix = "make one with MaseGraph(model)"
            if isinstance(graph, tuple):
                fix = "a pass returns two things: mg, info = …"
            raise PassArgsError(
                f"pass {self.name!r} works on a MaseGraph, not {type(graph).__name__}; {fix}"
            )
        for part in self.needs:
            bare = next((node for node in graph.nodes if not has_metadata(node, part)), None)
            if bare is not None:
                what = part if part == "metadata" else f"{part} metadata"
                raise PassArgsError(
                    f"pass {self.name!r} needs {what}, and node {bare.name!r} has none; "
                    f"run {FILLED_BY[part]}_analysis_pass first"
                )

    def __repr__(self) -> str:
        return f"<{self.kind} pass {self.name!r}>"

    def __reduce__(self) -> str:  # by name, as functions are pickled
        return self.__qualname__


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


def has_metadata(node: fx.Node, part: str) -> bool:
    """Whether `node` has the part "common", "software" or "hardware"; "metadata" is any at all."""
    if "mase" not in node.meta:
        return False
    return part == "metadata" or bool(node.meta["mase"].parameters.get(part))


PASSES: Registry[GraphPass] = Registry("pass", package="chop.passes.graph")


def graph_pass(
    name: str,
    kind: Kind,
    needs: tuple[str, ...] = (),
    cls: type[GraphPass] = GraphPass,
    new_nodes: bool = False,
) -> Callable[[Callable[..., Info | None]], GraphPass]:
    """Register `fn(graph, *, option=default) -> info` as the pass `name`.

    Its keyword-only parameters are its options. `needs` are parts of the metadata ("common",
    "software", "hardware", or "metadata" for any) that must have been filled in before. `cls`
    is for passes that can be called in more than one way. `new_nodes` says that nodes may come with
    names that the graph did not have.
    """

    def wrap(fn: Callable[..., Info | None]) -> GraphPass:
        return PASSES.register(name)(cls(fn, name, kind, needs, new_nodes))

    return wrap


def run_pass(
    step: str | Pass | GraphPass, graph: MaseGraph, pass_args: Mapping[str, Any] | None = None
) -> tuple[MaseGraph, Info]:
    """Run a pass: one of ours, or its name, or a plain function that returns graph or info."""
    if isinstance(step, MaseGraph):
        raise TypeError("run_pass takes the pass first: run_pass(step, graph, pass_args)")
    run = PASSES[step] if isinstance(step, str) else step
    if isinstance(run, GraphPass):
        return run(graph, pass_args)
    start = time.perf_counter()
    # a function written by hand may well change the dict that it is given
    result = _call_plain(run, graph, copied(pass_args))
    logger.debug("pass %s took %.1f ms", pass_name(step), 1e3 * (time.perf_counter() - start))
    return _as_pair(result, graph, pass_name(step))


def pass_name(step: str | Pass | GraphPass) -> str:
    """The short name of a registered pass, the function's own name for any other."""
    if isinstance(step, str | GraphPass):
        return step if isinstance(step, str) else step.name
    return str(getattr(step, "__name__", step))


def _call_plain(run: Pass, graph: MaseGraph, pass_args: Any) -> Any:
    """With as many arguments as the function takes; its own default stands for no options."""
    try:
        params = inspect.signature(run).parameters.values()
    except ValueError:  # no signature to read, as of some built-ins
        return run(graph, pass_args)
    given = [p for p in params if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in params)
    takes_options = any_number or len(given) > 1
    has_default = len(given) > 1 and given[1].default is not inspect.Parameter.empty
    if not takes_options or (pass_args is None and has_default):
        return run(graph)
    return run(graph, pass_args)


def _as_pair(result: Any, graph: MaseGraph, name: str) -> tuple[MaseGraph, Info]:
    if result is None:
        return graph, {}
    if isinstance(result, MaseGraph):
        return result, {}
    if isinstance(result, Mapping):
        return graph, dict(result)
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], MaseGraph):
        return result[0], dict(result[1] or {})
    raise TypeError(
        f"pass {name!r} returned {type(result).__name__}; "
        f"a pass returns (graph, info), or one of the two"
    )
