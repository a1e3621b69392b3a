"""What each node of a network adds to the cost of its circuit, remembered for many formats.

A value is described by its range, and not by when it is ready: so two designs that differ in
earlier layers share what follows from equal ranges, and a new design is mostly looked up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from chop.hardware.estimate import formula
from chop.hardware.estimate.cost import Cost
from chop.hardware.estimate.formula import CodeRange, Target
from chop.hardware.estimate.ops import norm_facts, pool_choices
from chop.hardware.estimate.weights import WeightFacts, inside_counts, weight_facts
from chop.integers import Codes, ConvCodes, Scale
from chop.integers.ops.weighted import WeightedOp
from chop.numerics import NumberFormat
from chop.numerics.integer import Integer
from chop.numerics.weight_cache import TrackedWeights
from chop.passes.graph.analysis.cost.ledger import Formats, Line
from chop.passes.graph.describe.in_place import writes_in_place
from chop.passes.graph.transforms.integers.weighted_rules import norm_codes
from chop.passes.graph.transforms.integers.weights import dyadic, weight_codes
from chop.system.caches import Lru

MAX_KEPT = 4096  # results of one step, for values and formats
MAX_FACTS = 64  # formats of the weights of one layer


class Unsupported(Exception):
    """The network has a node or a format whose cost needs the integer graph of each design."""


class Part:
    """A part of the circuit: what it costs, and how long it takes, in cycles.

    One that begins a layer starts after a register. Whoever reads its result refers to the same
    object, so that it is counted once.
    """

    __slots__ = ("begins", "cost", "delay", "label")

    def __init__(self, span: CodeRange, cost: Cost, node: fx.Node, *, begins: bool = False) -> None:
        self.cost, self.label = cost, span.layer or node.name
        self.delay, self.begins = span.ready, begins

    def ready(self, since: float) -> float:
        """Return when the result is there, for an input that is there at `since`."""
        return (math.ceil(since) if self.begins else since) + self.delay


Parts = tuple[Part, ...]


class Value:
    """The range of a value in integers, and what became of it in each format.

    `family` has all ranges that one node was seen to have, by the formats that they were rounded
    to one after the other. Equal ones are one object.
    """

    __slots__ = ("family", "formats", "rounded", "span")

    def __init__(
        self, span: CodeRange, family: dict[Any, Value], formats: tuple[Target, ...]
    ) -> None:
        self.span, self.family, self.formats = span, family, formats
        self.rounded: dict[tuple[NumberFormat, float], tuple[Value, Parts]] = {}

    @staticmethod
    def of(span: CodeRange, family: dict[Any, Value], formats: tuple[Target, ...] = ()) -> Value:
        """Return the value of a family with this range; when it is ready does not matter."""
        span = span._replace(ready=0.0)
        if len(family) >= MAX_KEPT:
            family.clear()
        known = family.get((formats, span))
        if known is None:
            known = family[formats, span] = Value(span, family, formats)
        return known

    def in_format(self, fmt: NumberFormat, node: fx.Node, period: float) -> tuple[Value, Parts]:
        """Return the value rounded to a format, and the part that rounds it."""
        known = self.rounded.get((fmt, period))
        if known is None:
            known = self.rounded[fmt, period] = self._rounded(target_of(fmt), node, period)
        return known

    def _rounded(self, to: Target, node: fx.Node, period: float) -> tuple[Value, Parts]:
        span = self.span
        if to.low <= span.low and span.high <= to.high and span.exponent == to.exponent:
            return self, ()
        new, cost = formula.requantized(span, to, period)
        return Value.of(new, self.family, (*self.formats, to)), (Part(new, cost, node),)


class FloatValue:
    """A value in float: its codes once it is rounded, and what is done to them then."""

    __slots__ = ("count", "node", "rounded", "then")

    def __init__(self, node: fx.Node, count: int, then: tuple[CircuitStep, ...] = ()) -> None:
        self.node, self.count, self.then = node, count, then
        self.rounded: dict[tuple[NumberFormat, float], tuple[Value, Parts]] = {}

    def in_format(self, fmt: NumberFormat, node: fx.Node, period: float) -> tuple[Value, Parts]:
        """Return the codes in a format after all steps that came before, and their parts."""
        known = self.rounded.get((fmt, period))
        if known is None:
            to = target_of(fmt)
            parts: Parts = ()
            value = Value.of(CodeRange(to.low, to.high, to.exponent, self.count), {}, (to,))
            for step in self.then:
                value, made = step.on_codes(value, period)
                parts += made
            known = self.rounded[fmt, period] = (value, parts)
        return known


AnyValue = Value | FloatValue


def target_of(fmt: NumberFormat) -> Target:
    """Return what a formula needs to know of a format."""
    if type(fmt) is not Integer:
        raise Unsupported
    return Target(*fmt.codes, -fmt.frac_width, fmt.rounding, fmt.wraps)


class _Kept(NamedTuple):
    """A result of a step, and what it was computed from."""

    value: AnyValue
    formats: Formats
    copy: Formats
    tensors: tuple[Any, ...]
    result: AnyValue
    made: Parts


class _FactsCache:
    """The facts of weights by format, as long as the tensors that they were counted from stay."""

    def __init__(self) -> None:
        self.known: Lru[Any, tuple[tuple[Any, ...], WeightFacts]] = Lru(MAX_FACTS)

    def get(
        self, key: Any, tensors: tuple[Any, ...], count: Callable[[], WeightFacts]
    ) -> WeightFacts:
        known = self.known.get(key)
        if known is None or not _same(known[0], tensors):
            known = self.known.put(key, (tensors, count()))
        return known[1]


def versions(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Return tensors, each followed by its version."""
    return tuple([x for t in tensors for x in (t, None if t is None else t._version)])


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Return whether tensors are the same objects in the same versions."""
    if len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        if a is not b and not (isinstance(a, int) and a == b):
            return False
    return True


class CircuitStep:
    """A node whose cost the formula knows; results are kept for the designs that share them."""

    def __init__(self, line: Line) -> None:
        self.line, self.node = line, line.node
        node = line.node
        self.source = next(iter(node.all_input_nodes))
        self.in_place = writes_in_place(node)
        self.kept: dict[tuple[int, int, float], _Kept] = {}
        self.family: dict[Any, Value] = {}

    def read(self, value: AnyValue, formats: Formats, period: float) -> tuple[AnyValue, Parts]:
        """Return the result for a value, and the parts of the circuit that compute it."""
        before: Parts = ()
        if "data_in" in formats:
            value, before = value.in_format(formats["data_in"], self.node, period)
        key = (id(value), id(formats), period)
        tensors = self.tensors(formats)
        known = self.kept.get(key)
        if known is None or known.copy != formats or not _same(known.tensors, tensors):
            if len(self.kept) >= MAX_KEPT:
                self.kept.clear()
            result, made = self.result(value, formats, period)
            if "data_out" in formats:
                result, rounded = result.in_format(formats["data_out"], self.node, period)
                made += rounded
            # holds the value and the formats, so that no other objects get their addresses
            known = self.kept[key] = _Kept(value, formats, dict(formats), tensors, result, made)
        return known.result, before + known.made

    def tensors(self, formats: Formats) -> tuple[Any, ...]:
        """Return the tensors that the result depends on, with their versions."""
        return ()

    def result(self, value: AnyValue, formats: Formats, period: float) -> tuple[AnyValue, Parts]:
        """Return the result; a value in float waits for a format."""
        if isinstance(value, FloatValue):
            return FloatValue(value.node, value.count, (*value.then, self)), ()
        return self.on_codes(value, period)

    def on_codes(self, value: Value, period: float) -> tuple[Value, Parts]:
        """Return the result for codes."""
        return value, ()

    def made(
        self,
        result: tuple[CodeRange, Cost],
        formats: tuple[Target, ...] = (),
        *,
        begins: bool = False,
    ) -> tuple[Value, Parts]:
        """Return the value of a formula's result, and its part of the circuit."""
        part = Part(*result, self.node, begins=begins)
        return Value.of(result[0], self.family, formats), (part,)


class Relu(CircuitStep):
    def on_codes(self, value: Value, period: float) -> tuple[Value, Parts]:
        if value.span.low >= 0:
            return value, ()
        return self.made(formula.relu(value.span), value.formats)


class MaxPool(CircuitStep):
    def __init__(self, line: Line, op: Any, x: Codes, result: Codes) -> None:
        super().__init__(line)
        self.count, self.choices = pool_choices(op, x, result)

    def on_codes(self, value: Value, period: float) -> tuple[Value, Parts]:
        result = formula.largest(value.span, self.count, self.choices, period)
        return self.made(result, value.formats)


class Weighted(CircuitStep):
    """A linear layer or a convolution."""

    def __init__(self, line: Line, op: WeightedOp, x: Codes) -> None:
        super().__init__(line)
        self.inside: Any
        if isinstance(op, ConvCodes):
            kernel = tuple(op.weight.shape[2:])
            geometry = (kernel, op.stride, op.padding, op.dilation)
            self.inside, self.places = inside_counts(x.shape[1:], *geometry)
        else:
            self.inside = self.places = math.prod(x.shape[:-1])
        self.facts = _FactsCache()

    def tensors(self, formats: Formats) -> tuple[Any, ...]:
        layer = _layer_of(self.line)
        kept = layer._kept
        if isinstance(kept, TrackedWeights) and kept.tracks("weight"):
            parameters = layer._parameters  # which the search does not write to uncounted
            weight, bias = parameters["weight"], parameters["bias"]
            return weight, weight._version, bias, None if bias is None else bias._version
        return versions(*_rounded_parameters(layer))

    def result(self, value: AnyValue, formats: Formats, period: float) -> tuple[AnyValue, Parts]:
        if isinstance(value, FloatValue) or "weight" not in formats:
            raise Unsupported
        key = (formats["weight"], formats.get("bias"))
        facts = self.facts.get(key, self.tensors(formats), lambda: self._counted(key[0]))
        return self.made(formula.weighted(value.span, facts, self.node.name, period), begins=True)

    def _counted(self, fmt: NumberFormat) -> WeightFacts:
        weight, bias = _rounded_parameters(_layer_of(self.line))
        codes, scale, _ = weight_codes(weight, fmt)
        if not (scale.power_of_two and scale.uniform):
            raise Unsupported
        added = None if bias is None else dyadic(bias)
        return weight_facts(codes, int(scale.exponent), added, self.inside, self.places)


def _rounded_parameters(layer: Any) -> tuple[Tensor, Tensor | None]:
    with torch.no_grad():
        return layer.q_parameter("weight"), layer.q_parameter("bias")


class Norm(CircuitStep):
    """A batch norm that is not folded."""

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        self.facts = _FactsCache()

    def tensors(self, formats: Formats) -> tuple[Any, ...]:
        norm = _layer_of(self.line)
        return versions(norm.running_mean, norm.running_var, norm.weight, norm.bias)

    def result(self, value: AnyValue, formats: Formats, period: float) -> tuple[AnyValue, Parts]:
        if isinstance(value, FloatValue):
            raise Unsupported
        span, norm = value.span, _layer_of(self.line)

        def counted() -> WeightFacts:
            op = norm_codes(norm, bool(formats), Scale.power(span.exponent))
            return norm_facts(op, span)

        key = (span.exponent, span.size, formats.get("weight"), formats.get("bias"))
        facts = self.facts.get(key, self.tensors(formats), counted)
        return self.made(formula.scaled(span, facts, period))


def _layer_of(line: Line) -> Any:
    """Return the layer that a node calls now."""
    module = line.module
    if module is None or hasattr(type(module), "variant_name"):
        raise Unsupported
    return module
