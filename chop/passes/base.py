"""What a pass is: `(graph, pass_args) -> (graph, info)`, with its options as a Python signature."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.record import copied
from chop.passes.schema import HasOptions
from chop.passes.schema import PassArgsError as PassArgsError
from chop.registry import Registry, UnknownName

logger = logging.getLogger(__name__)

Info = dict[str, Any]
Kind = Literal["analysis", "transform", "interface"]

# which pass fills in which part of the metadata
FILLED_BY = {
    "metadata": "init_metadata",
    "common": "add_common_metadata",
    "software": "add_software_metadata",
    "hardware": "add_hardware_metadata",
}


class Pass(Protocol):
    """Anything that can be run on a graph: ours, or a function that you wrote by hand."""

    def __call__(
        self, graph: MaseGraph, pass_args: Any = None, /
    ) -> tuple[MaseGraph, Info] | MaseGraph | Info | None: ...


class GraphPass(HasOptions):
    """A registered pass; calling it checks its options and the metadata it needs, then runs it."""

    def __init__(
        self,
        fn: Callable[..., Info | None],
        name: str,
        kind: Kind,
        needs: tuple[str, ...],
        new_nodes: bool = False,
    ) -> None:
        super().__init__(fn, name)
        functools.update_wrapper(self, fn)
        self.__qualname__: str = fn.__qualname__
        assert set(needs) <= FILLED_BY.keys(), f"pass {name!r} needs one of {list(FILLED_BY)}"
        self.kind, self.needs, self.new_nodes = kind, needs, new_nodes

    def __call__(
        self, graph: MaseGraph, pass_args: Mapping[str, Any] | None = None, **options: Any
    ) -> tuple[MaseGraph, Info]:
        """Run on `graph`; options come as a dict or as keywords, and keywords take precedence."""
        checked = self.checked(pass_args, options)
        self._check_ready(graph)
        start = time.perf_counter()
        try:
            info = self.fn(graph, **checked) or {}
        except (PassArgsError, UnknownName) as error:
            error.args = (self._schema.sentence(str(error)),)
            raise
        logger.debug("pass %s took %.1f ms", self.name, 1e3 * (time.perf_counter() - start))
        return graph, info

    def checked(
        self, pass_args: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the options to run with, and warn of those that only other passes have."""
        given = {**(pass_args or {}), **options} if options else pass_args
        checked = self.check(given)
        for key, other in self.ignored(given).items():
            logger.warning(
                "pass %r has no option %r, which %r has; it is ignored", self.name, key, other
            )
        return checked

    def options_elsewhere(self) -> Mapping[str, str]:
        passes = sorted(PASSES.items(), reverse=True)  # so that the first with an option is named
        return {key: name for name, other in passes for key in other.options}

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


def has_metadata(node: fx.Node, part: str) -> bool:
    """Whether `node` has the part "common", "software" or "hardware"; "metadata" is any at all."""
    if "mase" not in node.meta:
        return False
    return part == "metadata" or bool(node.meta["mase"].parameters.get(part))


def _look_for(name: Any) -> None:
    """Import the functions that begin with the name of a pass."""
    package = importlib.import_module(PACKAGE)
    for function in package.__all__:
        if function.startswith(f"{name}_"):
            getattr(package, function)


PACKAGE = "chop.passes.graph"
PASSES: Registry[GraphPass] = Registry(
    "pass", PACKAGE, room="passes", look_for=_look_for, for_users=True
)


def graph_pass(
    name: str,
    kind: Kind,
    needs: tuple[str, ...] = (),
    cls: type[GraphPass] = GraphPass,
    new_nodes: bool = False,
) -> Callable[[Callable[..., Info | None]], GraphPass]:
    """Register `fn(graph, *, option=default) -> info` as the pass `name`.

    Its keyword-only parameters are its options. `needs` are parts of the metadata ("common",
    "software", "hardware", or "metadata" for any) that must exist beforehand. `cls` is for passes
    that can be called in more than one way. `new_nodes` means that the pass may add nodes with new
    names.
    """

    def wrap(fn: Callable[..., Info | None]) -> GraphPass:
        return PASSES.register(name)(cls(fn, name, kind, needs, new_nodes))

    return wrap


def run_pass(
    step: str | Pass | GraphPass, graph: MaseGraph, pass_args: Mapping[str, Any] | None = None
) -> tuple[MaseGraph, Info]:
    """Run a registered pass, the pass of that name, or a function that returns graph or info."""
    if isinstance(step, MaseGraph):
        raise TypeError("run_pass takes the pass first: run_pass(step, graph, pass_args)")
    run = PASSES[step] if isinstance(step, str) else step
    if isinstance(run, GraphPass):
        return run(graph, pass_args)
    start = time.perf_counter()
    # a user's function may change the dict that it receives
    own_args = copied(dict(pass_args) if isinstance(pass_args, Mapping) else pass_args)
    result = _call_plain(run, graph, own_args)
    logger.debug("pass %s took %.1f ms", pass_name(step), 1e3 * (time.perf_counter() - start))
    return _as_pair(result, graph, pass_name(step))


def pass_name(step: str | Pass | GraphPass) -> str:
    """Return the short name of a registered pass, or the function's `__name__` for any other."""
    if isinstance(step, GraphPass):
        return step.name
    return str(getattr(step, "__name__", step))


def _call_plain(run: Pass, graph: MaseGraph, pass_args: Any) -> Any:
    """Call `run` with as many arguments as it takes; without options its default applies."""
    try:
        params = inspect.signature(run).parameters.values()
    except ValueError:  # some built-ins have no readable signature
        return run(graph, pass_args)
    positional = [p for p in params if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in params)
    takes_options = any_number or len(positional) > 1
    has_default = len(positional) > 1 and positional[1].default is not inspect.Parameter.empty
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
