"""Helpers for the nodes of a graph."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase


def load_arg(a: Any, env: Mapping[str, Any]) -> Any:
    """Replace every fx node in `a` by its value in `env`, which is keyed by node name."""
    return fx.node.map_arg(a, lambda node: env[node.name])


def fetch_attr(mod: nn.Module, target: str) -> Any:
    """Return the attribute of `mod` with the dotted name `target`."""
    value: Any = mod
    for i, part in enumerate(parts := target.split(".")):
        if not hasattr(value, part):
            raise RuntimeError(f"{type(mod).__name__} has no {'.'.join(parts[: i + 1])!r}")
        value = getattr(value, part)
    return value


def match_and_filter(name: str, funcs: Iterable[str]) -> tuple[bool, str | None]:
    """Return whether `name` is one of `funcs` and which, ignoring fx's suffixes `_1`, `_2`.

    >>> match_and_filter("add_1", ["mul", "add"]), match_and_filter("my_add_fn", ["add"])
    ((True, 'add'), (False, None))
    """
    stem = re.sub(r"_\d+$", "", name)
    match = next((func for func in funcs if func in (name, stem)), None)
    return match is not None, match


def get_input_nodes(fx_graph: fx.Graph) -> list[fx.Node]:
    return [node for node in fx_graph.nodes if node.op == "placeholder"]


def get_output_nodes(fx_graph: fx.Graph) -> list[fx.Node]:
    return [node for node in fx_graph.nodes if node.op == "output"]


def _is_implicit(node: fx.Node) -> bool:
    return mase(node).common.mase_type in ("placeholder", "output", "implicit_func", "get_attr")


def get_hardware_nodes(mg: MaseGraph) -> list[fx.Node]:
    """The nodes that compute; shapes, constants, inputs and outputs have no hardware."""
    return [node for node in mg.nodes if not _is_implicit(node)]


def first_computing(graph: MaseGraph) -> list[fx.Node]:
    """The first nodes that compute, found from the inputs through nodes that only reshape."""
    return _frontier(graph, backwards=False)[0]


def last_computing(graph: MaseGraph) -> list[fx.Node]:
    """The last nodes that compute, found backwards from the output."""
    return _frontier(graph, backwards=True)[0]


def outer_nodes(graph: MaseGraph) -> set[fx.Node]:
    """The nodes before the first and after the last nodes that compute."""
    return _frontier(graph, backwards=False)[1] | _frontier(graph, backwards=True)[1]


def _frontier(graph: MaseGraph, backwards: bool) -> tuple[list[fx.Node], set[fx.Node]]:
    """The computing nodes that are reached first, and the nodes passed on the way."""
    queue = (get_output_nodes if backwards else get_input_nodes)(graph.fx_graph)
    passed, reached = set(queue), set[fx.Node]()
    for node in queue:  # grows during iteration
        for neighbour in node.all_input_nodes if backwards else node.users:
            if not _is_implicit(neighbour):
                reached.add(neighbour)
            elif neighbour not in passed:
                passed.add(neighbour)
                queue.append(neighbour)
    return [node for node in graph.nodes if node in reached], passed
