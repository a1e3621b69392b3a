"""Costs from the logic that alkaid makes of each layer: its adders, choices and tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from chop.hardware.estimate.coefficients import ADDERS, AdderCoefficients
from chop.hardware.estimate.cost import Cost, Estimate
from chop.hardware.estimate.truth_tables import table_features
from chop.hardware.estimate.walk import by_formula
from chop.hardware.unrolled import symbols
from chop.hardware.unrolled.layers import Layer, layers_of
from chop.hardware.unrolled.limits import check_limits
from chop.hardware.unrolled.logic import LayerLogic, layer_logic
from chop.hardware.unrolled.stages import Logic
from chop.integers import IntegerGraph

__all__ = ["by_adders", "layer_features", "logic_features"]

NEGATE, ADD, SUBTRACT, RELU, ADD_CONSTANT, CONSTANT, CHOOSE = -2, 0, 1, 2, 4, 5, 6
MULTIPLY, TABLE, REDUCE = 7, 8, 9  # opcodes of alkaid's ops
REDUCED = 5  # bits that a LUT takes in besides the result of the one before it


def by_adders(graph: IntegerGraph, period: float, max_adders: int) -> Estimate:
    """Return the cost of the circuit of a graph, from the logic of its layers."""
    symbols.need_alkaid()
    layers = layers_of(graph)
    check_limits(graph, layers, max_adders)
    logic = [layer_logic(graph, layer) for layer in layers]
    costs: dict[str, Cost] = {}
    for layer, made in zip(layers, logic, strict=True):
        own = {name: n for node in layer.nodes for name, n in node.op.luts.items()}
        cost = _layer_cost(made, period, ADDERS._replace(**own))
        # several modules may belong to one layer of the model
        costs[layer.name] = costs.get(layer.name, Cost()).plus(cost)
    for name, cost in by_formula(graph, period).layers.items():
        if cost.ebops:
            costs[name] = costs.get(name, Cost())._replace(ebops=cost.ebops)
    waiting, cycles = _waiting(graph, layers, [made.latency(period) for made in logic])
    if waiting:
        costs["between layers"] = Cost(ff=float(waiting))
    return Estimate(costs, max(1, cycles), period, "adders")


def layer_features(graph: IntegerGraph, period: float) -> dict[str, Counter[str]]:
    """Return what the logic of each layer consists of, in bits of each kind."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for layer in layers_of(graph):
        found[layer.name].update(_features(layer_logic(graph, layer).stages(period)))
    return dict(found)


def _features(stages: Sequence[Logic]) -> Counter[str]:
    features: Counter[str] = Counter()
    for stage in stages:
        features.update(logic_features(stage))
    return features


def _layer_cost(made: LayerLogic, period: float, each: AdderCoefficients) -> Cost:
    features = _features(made.stages(period))
    lut = sum(getattr(each, name) * count for name, count in features.items())
    return Cost(0, float(features["adder"]), lut, float(made.register_bits(period)))


def _waiting(
    graph: IntegerGraph, layers: Sequence[Layer], cycles: Sequence[int]
) -> tuple[int, int]:
    """Return the flip-flops of values that wait for others, or beside them, and the latency."""
    ready: dict[str, int] = {}
    needed: dict[str, int] = {}
    for layer, count in zip(layers, cycles, strict=True):
        start = max((ready.get(name, 0) for name in layer.inputs), default=0)
        for name in layer.inputs:
            needed[name] = max(needed.get(name, 0), start)
        ready |= dict.fromkeys(layer.outputs, start + count)
    last = max((ready.get(name, 0) for name in graph.outputs), default=0)
    needed |= dict.fromkeys(graph.outputs, last)
    bits = sum(
        (until - ready.get(name, 0)) * sum(width for _, width in symbols.kinds(graph.codes(name)))
        for name, until in needed.items()
    )
    return bits + last, last  # one bit for each stage says that its values are valid


def logic_features(logic: Logic) -> Counter[str]:
    """Return what a stage of logic consists of, in bits of each kind."""
    found: Counter[str] = Counter()
    used = logic.ref_count
    stage = _Stage(logic)
    for i, op in enumerate(logic.ops):
        if used[i] and stage.widths[i] and op.opcode in FEATURES:
            found.update(FEATURES[op.opcode](stage, i, op))
    return found


class Places(NamedTuple):
    """The places of the bits of a number; those above repeat the sign."""

    low: int
    high: int
    signed: bool

    def has(self, place: int) -> bool:
        """Return whether the number has a bit at a place that is not always zero."""
        return self.low <= place and (place < self.high or self.signed)


class _Stage:
    """The widths of all numbers in a stage of logic."""

    def __init__(self, logic: Logic) -> None:
        self.logic = logic
        self.kifs = [op.qint.kif for op in logic.ops]
        self.widths = [sum(kif) for kif in self.kifs]

    def operand(self, i: int, shift: int = 0) -> Places:
        signed, whole, fraction = self.kifs[i]
        return Places(shift - fraction, shift + whole + signed, bool(signed))


def _added(stage: _Stage, i: int, op: Any) -> dict[str, float]:
    a, b = op.addr
    one, other = stage.operand(a), stage.operand(b, op.data[0])
    return _chain(one, other, stage.operand(i), subtract=op.opcode == SUBTRACT)


def _chain(one: Places, other: Places, result: Places, *, subtract: bool) -> dict[str, float]:
    """Return the LUTs of a carry chain, bit by bit, as alkaid writes it.

    A bit of both operands takes a LUT. Where only one has a bit, the sum needs none, and a
    difference an inverter. Above both, all bits are equal. A sum starts at the lowest bit that
    both have; below it, it is one of the operands.
    """
    start = max(one.low, other.low)
    if subtract:
        start = min(other.low, start)
    apart = one.high <= other.low or other.high <= one.low
    lower = one if one.low < other.low else other
    if apart and not lower.signed and not (subtract and lower is other):
        start = max(start, other.low) if subtract else result.high  # wires only
    found: dict[str, float] = {"adder": 0, "inverted": 0}
    for place in range(start, min(result.high, max(one.high, other.high))):
        both = one.has(place) and other.has(place)
        found["adder"] += both
        # the lowest bit of a number is that of its opposite, too
        found["inverted"] += subtract and not both and place != start
    return found


def _constant_added(stage: _Stage, i: int, op: Any) -> dict[str, float]:
    value, fraction = op.data
    one, result = stage.operand(op.addr[0]), stage.operand(i)
    size, low = abs(value), -fraction
    low += (size & -size).bit_length() - 1
    size >>= (size & -size).bit_length() - 1
    places = range(max(low, result.low), result.high)
    bits = (place for place in places if bool(size >> (place - low) & 1) != (value < 0))
    return {"inverted": sum(one.has(place) for place in bits)}


def _chosen(stage: _Stage, i: int, op: Any) -> dict[str, float]:
    fixed = any(stage.logic.ops[j].opcode == CONSTANT for j in op.addr[:2])
    return {"constant_choice" if fixed else "choice": stage.widths[i]}


def _relu(stage: _Stage, i: int, op: Any) -> dict[str, float]:
    return {"relu": stage.widths[i] if stage.logic.ops[op.addr[0]].qint.min < 0 else 0}


def _product(stage: _Stage, i: int, op: Any) -> dict[str, float]:
    a, b = op.addr
    return {"product": stage.widths[a] * stage.widths[b]}


def _reduced(stage: _Stage, i: int, op: Any) -> dict[str, float]:
    """Whether any or all bits are set: a LUT for six bits."""
    return {"reduced": -(-(stage.widths[op.addr[0]] - 1) // REDUCED) if op.data[0] else 0}


def _negated(stage: _Stage, i: int, op: Any) -> dict[str, float]:
    """The opposite of one bit is this bit, repeated."""
    return {"negated": stage.widths[i] if stage.widths[op.addr[0]] > 1 else 0}


def _table(stage: _Stage, i: int, op: Any) -> dict[str, float]:
    source = stage.logic.ops[op.addr[0]].qint
    table = stage.logic.lookup_tables[op.data[0]]
    return dict(table_features(table.padded_table(source)))


FEATURES: Mapping[int, Callable[[_Stage, int, Any], Mapping[str, float]]] = {
    ADD: _added,
    SUBTRACT: _added,
    ADD_CONSTANT: _constant_added,
    NEGATE: _negated,
    RELU: _relu,
    CHOOSE: _chosen,
    MULTIPLY: _product,
    REDUCE: _reduced,
    TABLE: _table,
}
