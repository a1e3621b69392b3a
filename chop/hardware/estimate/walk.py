"""Apply the formulas to all nodes of an integer graph."""

from __future__ import annotations

import math
from collections.abc import Iterable

from chop.hardware.estimate.cost import Cost, Estimate
from chop.hardware.estimate.formula import CodeRange
from chop.hardware.estimate.ops import FORMULAS, Site
from chop.integers import IntegerGraph, QuantizeInput

__all__ = ["by_formula", "cycles_of", "gathered", "held"]


def by_formula(graph: IntegerGraph, period: float) -> Estimate:
    """Return the cost of the circuit of a graph by formula."""
    spans: dict[str, CodeRange] = {}
    costs: list[tuple[str, Cost]] = []
    for node in graph.nodes.values():
        if type(node.op) not in FORMULAS:
            raise ValueError(
                f"node {node.name!r} is {node.op.label}, which has no formula for its cost; add "
                f"one with has_formula"
            )
        known = () if isinstance(node.op, QuantizeInput) else node.inputs
        codes = [graph.codes(i) for i in known]
        site = Site(node, [spans[i] for i in known], codes, period)
        span, cost = FORMULAS[type(node.op)](site)
        spans[node.name] = span
        costs.append((span.layer or node.source, cost))
    return gathered(costs, [spans[name] for name in graph.outputs], period)


def gathered(
    costs: Iterable[tuple[str, Cost]], outputs: Iterable[CodeRange], period: float
) -> Estimate:
    """Return the estimate of a network from the costs of its ops, each with its layer."""
    outputs = list(outputs)
    layers: dict[str, Cost] = {}
    for layer, cost in (*costs, *((span.layer, held(span)) for span in outputs)):
        if any(cost):
            layers[layer] = layers[layer].plus(cost) if layer in layers else cost
    return Estimate(layers, cycles_of(outputs), period, "formula")


def held(output: CodeRange) -> Cost:
    """Return the cost of the register of an output."""
    return Cost(ff=float(output.size * output.bits))


def cycles_of(outputs: Iterable[CodeRange]) -> int:
    """Return the clock cycles until all outputs are there."""
    return max(1, *(math.ceil(span.ready) for span in outputs))
