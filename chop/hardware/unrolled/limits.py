"""Limits of unrolled circuits, checked before anything is built."""

from __future__ import annotations

from collections.abc import Sequence

from chop.hardware.unrolled.layers import Layer
from chop.hardware.unrolled.registry import UNROLLED
from chop.hardware.unrolled.symbols import MAX_BITS
from chop.integers import IntegerGraph, IntegerNode, TooWide
from chop.integers.codes import bits_for

__all__ = ["adder_estimate", "check_limits"]

STREAMING = "use `backend='streaming'`"
SMALLER = "use fewer inputs and narrower formats"


def adder_estimate(graph: IntegerGraph, layer: Layer) -> int:
    """Return about how many adders a layer has, before alkaid shares what is common to them."""
    return sum(_adders(graph, node) for node in layer.nodes)


def check_limits(graph: IntegerGraph, layers: Sequence[Layer], max_adders: int) -> None:
    """Refuse graphs with ops that have no function, values too wide, or too many adders."""
    nodes = [node for layer in layers for node in layer.nodes]
    if unknown := [node for node in nodes if type(node.op) not in UNROLLED]:
        names = ", ".join(f"{node.name} ({type(node.op).__name__})" for node in unknown)
        register = f"{STREAMING}, or register" if _streams(graph) else "register"
        raise NotImplementedError(
            f"unrolled circuits have no function for {names}; {register} one as "
            f"docs/add_an_op.md shows"
        )
    for name in dict.fromkeys([*(i for n in nodes for i in n.inputs), *(n.name for n in nodes)]):
        codes = graph.codes(name)
        if (bits := bits_for(codes.lowest, codes.highest)) > MAX_BITS:
            raise TooWide(
                f"{name} has {bits} bits; values of unrolled circuits have at most {MAX_BITS}; "
                f"use narrower formats"
            )
    counts = [adder_estimate(graph, layer) for layer in layers]
    if (total := sum(counts)) > max_adders:
        most, name = max(zip(counts, (layer.name for layer in layers), strict=True))
        raise ValueError(
            f"the unrolled circuit would have about {total:,} adders, {most:,} of them in {name}; "
            f"at most {max_adders:,} are allowed; "
            f"{STREAMING if _streams(graph) else SMALLER}, or raise `max_adders`"
        )


def _streams(graph: IntegerGraph) -> bool:
    """Return whether the streaming backend can build all nodes, before any of them are fused."""
    from chop.hardware.streaming.emit import unsupported

    return not any(map(unsupported, graph.nodes.values()))


def _adders(graph: IntegerGraph, node: IntegerNode) -> int:
    codes = [*(graph.codes(i) for i in node.inputs), node.codes]
    return UNROLLED[type(node.op)].adders(node.op, codes)
