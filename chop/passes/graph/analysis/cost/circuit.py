"""What the circuit of one network costs in many formats, by formula.

The network is converted to integers once, for its shapes; after that only the widths of its
layers and the digits of their weights are read. The numbers are those of
`chop.hardware.estimate.estimate(…, fidelity="formula")` for the converted network.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import fx

from chop.hardware.estimate import Estimate, estimate
from chop.hardware.estimate.cost import Cost, metrics_of
from chop.hardware.estimate.formula import CodeRange
from chop.hardware.estimate.walk import cycles_of, gathered, held
from chop.integers import IntegerGraph, IntegerNode, MaxPoolCodes
from chop.integers.ops.weighted import WeightedOp
from chop.ir.graph.mase_metadata import mase
from chop.passes.graph.analysis.cost.circuit_steps import (
    AnyValue,
    CircuitStep,
    FloatValue,
    MaxPool,
    Norm,
    Part,
    Relu,
    Unsupported,
    Weighted,
)
from chop.passes.graph.analysis.cost.ledger import MAX_LEDGERS, Ledger, Line, ledger_of
from chop.passes.graph.transforms.integers import moving_rules, rule_of, weighted_rules
from chop.passes.graph.transforms.integers import pointwise_rules as pointwise
from chop.system.caches import Lru


class CircuitLedger:
    """The costs of a network's circuit; `read` gives them for the current formats."""

    def __init__(self, ledger: Ledger, template: IntegerGraph) -> None:
        self.ledger = ledger
        self.inputs: dict[fx.Node, FloatValue] = {}
        self.outputs: list[fx.Node] = []
        self.steps: list[CircuitStep] = []
        ops = {node.source: node for node in template.nodes.values() if _has_shape(node)}
        for line in ledger.lines:
            node = line.node
            if node.op == "placeholder":
                shape = mase(node).common.results.tensor("data_out_0").shape
                self.inputs[node] = FloatValue(node, math.prod(shape[1:]))
            elif node.op == "output":
                self.outputs = list(node.all_input_nodes)
            else:
                self.steps.append(_step(line, ops.get(node.name), template))

    def read(self, period: float) -> Estimate:
        """Return the costs in the current formats of the layers."""
        outputs, parts = self._read(period)
        return gathered(((part.label, part.cost) for part in parts), outputs, period)

    def metrics(self, period: float) -> dict[str, float]:
        """Return the sums only, which takes less time."""
        outputs, parts = self._read(period)
        costs = [*(part.cost for part in parts), *map(held, outputs)]
        total = Cost(*map(sum, zip(*costs, strict=True)))
        return metrics_of(total, cycles_of(outputs), period)

    def _read(self, period: float) -> tuple[list[CodeRange], dict[Part, None]]:
        """Return the ranges of the outputs, and all parts of the circuit."""
        values: dict[fx.Node, AnyValue] = dict(self.inputs)
        ready: dict[fx.Node, float] = dict.fromkeys(self.inputs, 0.0)
        parts: dict[Part, None] = {}  # each once, whoever needs it
        for step in self.steps:
            result, made = step.read(values[step.source], step.line.formats(), period)
            values[step.node], at = result, ready[step.source]
            for part in made:
                parts[part] = None
                at = part.ready(at)
            ready[step.node] = at
            if step.in_place:
                values[step.source], ready[step.source] = result, at
        return [self._output(values[node], ready[node]) for node in self.outputs], parts

    @staticmethod
    def _output(value: AnyValue, ready: float) -> CodeRange:
        if isinstance(value, FloatValue):
            raise Unsupported
        return value.span._replace(ready=ready)


def _has_shape(node: IntegerNode) -> bool:
    return isinstance(node.op, WeightedOp | MaxPoolCodes)


def _step(line: Line, made: IntegerNode | None, template: IntegerGraph) -> CircuitStep:
    """Return the step of a node, or raise `Unsupported`."""
    node = line.node
    rule = rule_of(mase(node).common.mase_op)
    if node.op == "get_attr" or len(node.all_input_nodes) != 1:
        raise Unsupported
    if rule is pointwise.relu:
        return Relu(line)
    if rule is weighted_rules.batch_norm:
        return Norm(line)
    unchanged = (moving_rules.reshape, moving_rules.permute, pointwise.same, pointwise.dropout)
    if rule in unchanged or node.name in template.left_out:
        return CircuitStep(line)
    if made is None:
        raise Unsupported
    x = template.codes(made.inputs[0])
    if isinstance(made.op, WeightedOp) and node.op == "call_module":
        return Weighted(line, made.op, x)
    if isinstance(made.op, MaxPoolCodes):
        return MaxPool(line, made.op, x, made.codes)
    raise Unsupported


_LEDGERS: Lru[int, tuple[Ledger, CircuitLedger | None]] = Lru(MAX_LEDGERS)


def circuit_cost(
    model: fx.GraphModule, period: float, convert: Callable[[], IntegerGraph]
) -> dict[str, float]:
    """Return the metrics of the circuit of a network with common metadata, in its current formats.

    `convert` returns its integer graph, which is needed once, and for each design of a network
    with ops or formats that are rarer.
    """
    ledger = circuit_ledger(model, convert)
    try:
        if ledger is not None:
            return ledger.metrics(period)
    except Unsupported:
        pass
    return estimate(convert(), fidelity="formula", clock_period=period).metrics


def circuit_ledger(
    model: fx.GraphModule, convert: Callable[[], IntegerGraph]
) -> CircuitLedger | None:
    """Return the ledger of a network, reused while its shapes stay; None if it cannot have one."""
    ledger = ledger_of(model)
    known = _LEDGERS.get(id(model))
    if known is None or known[0] is not ledger:
        try:
            made: CircuitLedger | None = CircuitLedger(ledger, convert())
        except Unsupported:
            made = None
        known = _LEDGERS.put(id(model), (ledger, made))
    return known[1]
