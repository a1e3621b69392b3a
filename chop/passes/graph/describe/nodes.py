"""Small questions about the nodes of a graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase


def load_arg(a: Any, env: Mapping[str, Any]) -> Any:
    """`a` with every fx node in it replaced by its value in `env`, which is keyed by node name."""
    return fx.node.map_arg(a, lambda node: env[node.name])


def fetch_attr(mod: nn.Module, target: str) -> Any:
    """What the dotted name `target` means inside `mod`."""
    found: Any = mod
    for i, part in enumerate(parts := target.split(".")):
        if not hasattr(found, part):
            raise RuntimeError(f"{type(mod).__name__} has no {'.'.join(parts[: i + 1])!r}")
        found = getattr(found, part)
    return found


def match_and_filter(name: str, funcs: Iterable[str]) -> tuple[bool, str | None]:
    """Whether a node called `name` is one of `funcs`, by fx's rule of `_1`, `_2` for repetitions.

    >>> match_and_filter("add_1", ["mul", "add"]), match_and_filter("my_add_fn", ["add"])
    ((True, 'add'), (False, None))
    """
    stem = re.sub(r"_\d+$", "", name)
    found = next((func for func in funcs if func in (name, stem)), None)
    return found is not None, found


def get_input_nodes(fx_graph: fx.Graph) -> list[fx.Node]:
    return [node for node in fx_graph.nodes if node.op == "placeholder"]


def get_output_nodes(fx_graph: fx.Graph) -> list[fx.Node]:
    return [node for node in fx_graph.nodes if node.op == "output"]


def _is_implicit(node: fx.Node) -> bool:
    return mase(node).common.mase_type in ("placeholder", "output", "implicit_func", "get_attr")


def get_hardware_nodes(mg: MaseGraph) -> list[fx.Node]:
    """The nodes that compute; shapes, constants and the graph's ends have no hardware."""
    return [node for node in mg.nodes if not _is_implicit(node)]


def first_computing(graph: MaseGraph) -> list[fx.Node]:
    """The first nodes that compute, looking from the inputs through those that only reshape."""
    return _frontier(graph, get_input_nodes(graph.fx_graph), lambda node: list(node.users))[0]


def last_computing(graph: MaseGraph) -> list[fx.Node]:
    """The last nodes that compute, looking back from the output."""
    return _frontier(graph, get_output_nodes(graph.fx_graph), lambda node: node.all_input_nodes)[0]


def outer_nodes(graph: MaseGraph) -> set[fx.Node]:
    """The nodes before the first and after the last that compute."""
    inputs, outputs = get_input_nodes(graph.fx_graph), get_output_nodes(graph.fx_graph)
    before = _frontier(graph, inputs, lambda node: list(node.users))[1]
    return before | _frontier(graph, outputs, lambda node: node.all_input_nodes)[1]


def _frontier(
    graph: MaseGraph, start: list[fx.Node], step: Callable[[fx.Node], list[fx.Node]]
) -> tuple[list[fx.Node], set[fx.Node]]:
    """The computing nodes that are reached first, and those that were passed on the way."""
    passed, queue, reached = set(start), list(start), set[fx.Node]()
    for node in queue:  # grows while it is walked
        for neighbour in step(node):
            if not _is_implicit(neighbour):
                reached.add(neighbour)
            elif neighbour not in passed:
                passed.add(neighbour)
                queue.append(neighbour)
    return [node for node in graph.nodes if node in reached], passed
