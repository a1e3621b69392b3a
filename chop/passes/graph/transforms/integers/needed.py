"""Which nodes a network returns, and which its output depends on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

from torch import fx

from chop.ir.graph.mase_metadata import mase
from chop.ir.graph.tracer import VIEWS
from chop.ir.nested import contents, named_output, named_tuple
from chop.passes.graph.describe.in_place import writes_in_place
from chop.passes.graph.transforms.integers.values import refuse


def returns(node: fx.Node) -> bool:
    """Return whether a node only hands results on: the output, or the results by name in it."""
    named = node.target in (named_output, named_tuple) or is_dataclass(node.target)
    return node.op == "output" or (node.op == "call_function" and named)


def returned_nodes(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes in the output, also those in a dict, a dataclass or a nested tuple."""
    (output,) = (node for node in graph.nodes if node.op == "output")

    def leaves(value: Any) -> Iterator[fx.Node]:
        if isinstance(value, fx.Node) and not returns(value):
            yield value
            return
        parts = (value.args, value.kwargs) if isinstance(value, fx.Node) else value
        for part in (contents(parts) or {}).values():
            yield from leaves(part)

    return list(leaves(output.args[0]))


def needed_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that the output depends on, without counters and the like.

    A graph with a state, on which the next call depends, is refused; so is one that writes to a
    tensor which it then reads under another name.
    """
    inputs = {n: n.all_input_nodes[0] for n in graph.nodes if n.all_input_nodes}
    written = {node: first for node, first in inputs.items() if _writes(node)}
    homes = _homes(graph, inputs, written)
    states = {node for node in written if homes[node].op == "get_attr"}
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in needed or (node in written and node not in states):
            needed |= {node, *node.all_input_nodes}
    for node in states:
        if homes[node] in needed:
            raise refuse(
                node,
                f"changes the tensor {str(homes[node].target)!r} of the model, on which the next "
                f"call depends; an integer graph has no state: keep the tensor constant",
            )
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in written.keys() - states:
        before = [n for n in order if homes[n] is homes[node] and order[n] < order[node]]
        for other in before:
            if other is not written[node] and any(order[u] > order[node] for u in other.users):
                raise refuse(
                    node,
                    f"writes to the memory of {other.name!r}, which is read later; compute a new "
                    f"tensor instead of writing in place",
                )
    return needed


def _writes(node: fx.Node) -> bool:
    return node.op != "output" and writes_in_place(node)


def _homes(
    graph: fx.Graph, inputs: dict[fx.Node, fx.Node], written: dict[fx.Node, fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Return, for each node, the first one with the same memory."""
    homes: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        view = node.op != "output" and mase(node).common.mase_op in VIEWS
        shares = node in inputs and (node in written or view)
        homes[node] = homes[inputs[node]] if shares else node
    return homes
