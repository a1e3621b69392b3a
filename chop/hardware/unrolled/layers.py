"""Which nodes of an integer graph form one layer, and so one module."""

from __future__ import annotations

from dataclasses import dataclass

from chop.hardware.unrolled.fusing import fused
from chop.hardware.unrolled.registry import UNROLLED
from chop.integers import IntegerGraph, IntegerNode
from chop.integers.ops.requantize import QuantizeInput

__all__ = ["Layer", "layers_of"]


@dataclass(frozen=True, eq=False)
class Layer:
    """Nodes that become one module, in the order of the graph.

    `inputs` are the values that it takes from other layers or from the ports; `outputs` those that
    others take, or that are results of the network.
    """

    name: str  # the node of the model that it stands for
    nodes: tuple[IntegerNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def layers_of(graph: IntegerGraph) -> list[Layer]:
    """Return the layers of a graph, each after those that it takes values from.

    A layer starts where weights are multiplied or tables looked up, or where values of several
    layers meet, and goes on with all ops on its result alone, up to and including the
    requantisations of its consumers: the rounded codes, which have the fewest bits, are what the
    layers exchange.
    """
    nodes = fused(graph)
    home: dict[str, str] = {}  # node -> the first node of its layer
    for name, node in nodes.items():
        if isinstance(node.op, QuantizeInput):
            continue
        before = {home[i] for i in node.inputs if i in home}
        # one layer of the model may be several ops that could start one
        goes_on = any(nodes[first].source == node.source for first in before)
        starts = len(before) != 1 or (_starts(node) and not goes_on)
        home[name] = name if starts else before.pop()
    _join_preparations(nodes, graph.outputs, home)
    members: dict[str, list[IntegerNode]] = {}
    for name, first in home.items():
        members.setdefault(first, []).append(nodes[name])
    return _sorted([_layer(nodes, graph.outputs, part) for part in members.values()])


Nodes = dict[str, IntegerNode]


def _starts(node: IntegerNode) -> bool:
    """Return whether an op is the first of a module."""
    cls = type(node.op)
    return cls in UNROLLED and UNROLLED[cls].starts_layer


def _join_preparations(nodes: Nodes, outputs: list[str], home: dict[str, str]) -> None:
    """Let what is done to an input, or a constant, join the one layer that takes it."""
    for first in reversed(list(dict.fromkeys(home.values()))):
        inside = [name for name, start in home.items() if start == first]
        if any(_starts(nodes[name]) for name in inside):
            continue
        fed = any(home.get(i, first) != first for name in inside for i in nodes[name].inputs)
        takers = {
            home[name]
            for name, node in nodes.items()
            if home.get(name, first) != first and not {*node.inputs}.isdisjoint(inside)
        }
        if fed or len(takers) != 1 or not {*inside}.isdisjoint(outputs):
            continue
        (taker,) = takers
        home |= dict.fromkeys(inside, taker)


def _layer(nodes: Nodes, outputs: list[str], members: list[IntegerNode]) -> Layer:
    inside = {node.name for node in members}
    taken = [i for node in members for i in node.inputs if i not in inside]
    used = {i for name, node in nodes.items() if name not in inside for i in node.inputs}
    given = [name for name in nodes if name in inside and (name in used or name in outputs)]
    name = next(filter(_starts, members), members[0]).source
    return Layer(name, tuple(members), tuple(dict.fromkeys(taken)), tuple(given))


def _sorted(layers: list[Layer]) -> list[Layer]:
    """Return layers in an order in which each one comes after those that feed it."""
    made = {name: layer for layer in layers for name in layer.outputs}
    done: dict[int, Layer] = {}

    def add(layer: Layer) -> None:
        if id(layer) in done:
            return
        for name in layer.inputs:
            if name in made:
                add(made[name])
        done[id(layer)] = layer

    for layer in layers:
        add(layer)
    return list(done.values())
