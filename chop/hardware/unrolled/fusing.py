"""Ops that cost less together than one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from chop.integers import (
    ChannelAffine,
    Codes,
    IntegerGraph,
    IntegerNode,
    IntegerOp,
    MixedWord,
    NeuronTables,
    Requantize,
)
from chop.integers.ops.requantize import QuantizeInput

__all__ = ["RoundedAffine", "fused"]


@dataclass(frozen=True, eq=False)
class RoundedAffine(IntegerOp):
    """A batch norm whose result is rounded at once: most bits of its factors make no difference."""

    affine: ChannelAffine
    requantize: Requantize

    def run(self, *inputs: Tensor) -> Tensor:
        return self.requantize.run(self.affine.run(*inputs))

    def result(self, *codes: Codes) -> Codes:
        return self.requantize.result(self.affine.result(*codes))


def fused(graph: IntegerGraph) -> dict[str, IntegerNode]:
    """Return the nodes that a circuit computes, by name; each equals the node of the graph."""
    nodes = {name: _fused(graph, node) for name, node in graph.nodes.items()}
    needed = {*graph.outputs}
    for name, node in reversed(nodes.items()):
        if name in needed or isinstance(node.op, QuantizeInput):
            needed |= {name, *node.inputs}
    return {name: node for name, node in nodes.items() if name in needed}


def _fused(graph: IntegerGraph, node: IntegerNode) -> IntegerNode:
    if not isinstance(node.op, Requantize):
        return node
    before = graph.nodes[node.inputs[0]]
    if isinstance(before.op, ChannelAffine):
        return replace(node, op=RoundedAffine(before.op, node.op), inputs=before.inputs)
    mixed = isinstance(node.op.word, MixedWord)
    if isinstance(before.op, NeuronTables) and before.codes.scale.uniform and not mixed:
        # the tables have the rounded codes, and stay in the layer of the model that has tables
        entries = node.op.run(before.op.tables.long()).int()
        op = replace(before.op, tables=entries, scale=node.op.word.scale)
        return replace(node, op=op, inputs=before.inputs, source=before.source)
    return node
