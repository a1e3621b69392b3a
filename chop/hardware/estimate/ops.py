"""The formula of each integer op: one function per op class, registered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.hardware.estimate import formula
from chop.hardware.estimate.coefficients import FORMULA as K
from chop.hardware.estimate.cost import Cost
from chop.hardware.estimate.formula import LUT_INPUTS, CodeRange, Target
from chop.hardware.estimate.mixed import (
    own_widths,
    product_bits,
    rounded_by_element,
    span_of,
    without_dead_inputs,
)
from chop.hardware.estimate.weights import (
    WeightFacts,
    bias_grid,
    inside_counts,
    signed_digits,
    weight_facts,
)
from chop.integers import (
    AddCodes,
    ArgMaxCodes,
    AvgPoolCodes,
    ChannelAffine,
    ClampCodes,
    Codes,
    ConcatCodes,
    ConstantCodes,
    ConvCodes,
    IntegerNode,
    LeakyReluCodes,
    LinearCodes,
    Lookup,
    MaxPoolCodes,
    MixedWord,
    MultiplyCodes,
    NeuronTables,
    PadCodes,
    PermuteCodes,
    PickCodes,
    QuantizeInput,
    Refine,
    ReluCodes,
    Requantize,
    ReshapeCodes,
    SubtractCodes,
    Word,
)
from chop.integers.builders import BoundsBuilder, Interval
from chop.integers.codes import bits_for
from chop.integers.op import ComposedOp
from chop.integers.ops.weighted import WeightedOp
from chop.registry import ByClass

__all__ = ["FORMULAS", "Site", "facts_of", "has_formula", "span_of", "target_of"]

Result = tuple[CodeRange, Cost]


@dataclass(frozen=True)
class Site:
    """What a formula computes the cost of: a node behind inputs, of which `codes` are known."""

    node: IntegerNode
    inputs: Sequence[CodeRange]
    codes: Sequence[Codes]  # of the inputs
    period: float  # of the clock

    @property
    def op(self) -> Any:
        return self.node.op

    @property
    def x(self) -> CodeRange:
        """The only input."""
        (x,) = self.inputs
        return x

    @property
    def result(self) -> CodeRange:
        """The range that interval analysis gives the result; it is there with the inputs."""
        ready = max((x.ready for x in self.inputs), default=0.0)
        layer = next((x.layer for x in self.inputs if x.layer), "")
        return span_of(self.node.codes, ready, layer)


Formula = Callable[[Site], Result]

# decorates the formula of one or more op classes and their subclasses
FORMULAS: ByClass[Formula] = ByClass("formula for its cost", room="estimates")
has_formula = FORMULAS.register


def target_of(word: Word) -> Target:
    """Return what a formula needs to know of a format."""
    exponent = int(word.scale.exponent.min())
    return Target(word.low, word.high, exponent, word.rounding, word.wraps)


def facts_of(op: WeightedOp, x: Codes, result: Codes) -> WeightFacts:
    """Return the facts of a layer's weights."""
    exponent = int(op.weight_scale.exponent.min())
    bias = None
    if op.bias is not None:
        bias = bias_grid(op.bias, int(result.scale.exponent.min()))
    if not isinstance(op, ConvCodes):
        places = math.prod(x.shape[:-1])
        return weight_facts(op.weight, exponent, bias, places, places)
    kernel = tuple(op.weight.shape[2:])
    inside, places = inside_counts(x.shape[1:], kernel, op.stride, op.padding, op.dilation)
    return weight_facts(op.weight, exponent, bias, inside, places)


@has_formula(QuantizeInput)
def quantize_input(site: Site) -> Result:
    return own_widths(span_of(site.node.codes), site.op.word, site.node.codes), Cost()


@has_formula(LinearCodes, ConvCodes)
def weighted(site: Site) -> Result:
    node, op, x = site.node, site.op, site.x
    if x.widths is None:
        facts = facts_of(op, site.codes[0], node.codes)
        return formula.weighted(x, facts, node.source, site.period)
    facts = facts_of(without_dead_inputs(op, x), site.codes[0], node.codes)
    mean = product_bits(op, x) / max(1, facts.bits)
    new, cost = formula.weighted(x, facts, node.source, site.period, mean)
    return span_of(node.codes, new.ready, new.layer), cost


@has_formula(ChannelAffine)
def channel_affine(site: Site) -> Result:
    x = site.x
    if not site.codes[0].scale.uniform:
        x = span_of(site.codes[0], x.ready, x.layer)
    return formula.scaled(x, norm_facts(site.op, x), site.period)


def norm_facts(op: ChannelAffine, x: CodeRange) -> WeightFacts:
    """Return the facts of a batch norm of values with one exponent."""
    exponent = int(op.scale.exponent)
    places = x.size // len(op.multiplier)
    column, offset = op.multiplier.unsqueeze(1), bias_grid(op.offset, exponent)
    return weight_facts(column, exponent - x.exponent, offset, places, places)


@has_formula(Requantize)
def requantize(site: Site) -> Result:
    op, x, scale = site.op, site.x, site.codes[0].scale
    if isinstance(op.word, MixedWord):
        return rounded_by_element(op.word, site.node, x, site.period)
    new, cost = formula.requantized(x, target_of(op.word), site.period)
    if scale.uniform and scale.power_of_two and op.multiplier is None:
        return new, cost
    span = span_of(site.node.codes, new.ready, x.layer)
    if op.multiplier is None and op.divisor is not None and int(op.divisor.max()) == 1:
        return span, cost
    # a product with a number of 31 bits, of whose signed digits a third is not zero
    adder_bits = x.size * 10 * (x.bits + 16)
    return span, cost.plus(Cost(adder_bits=adder_bits, lut=K.adder * adder_bits))


@has_formula(ReluCodes)
def relu(site: Site) -> Result:
    return formula.relu(site.x)


@has_formula(ClampCodes)
def clamp(site: Site) -> Result:
    op, x = site.op, site.x
    target = Target(max(op.low, x.low), min(op.high, x.high), x.exponent, "floor", wraps=False)
    return formula.requantized(x, target, site.period)


class AdderCount(BoundsBuilder):
    """Counts the bits of adders and of choices that a meaning becomes, along with its bounds."""

    def __init__(self, codes: Sequence[Codes]) -> None:
        super().__init__(codes)
        self.adder_bits, self.chosen_bits, self.additions = 0.0, 0.0, 0

    def _added(self, result: Interval, adders: int = 1) -> Interval:
        """Count so many adders for each number of a result."""
        self.adder_bits += bits_for(*result.ends) * result.low.numel() * adders
        self.additions += adders > 0
        return result

    def _chosen(self, result: Interval) -> Interval:
        self.chosen_bits += bits_for(*result.ends) * result.low.numel()
        return result

    def max(self, x: Interval, bound: int) -> Interval:
        return self._chosen(super().max(x, bound))

    def clamp(self, x: Interval, low: int, high: int) -> Interval:
        return self.max(self._chosen(super().clamp(x, low, high)), low)

    def multiply_by_sign(self, x: Interval, negative: int, other: int) -> Interval:
        result = super().multiply_by_sign(x, negative, other)
        adders = sum(max(0, n - 1) for n in _digits(negative, other))
        return self._chosen(self._added(result, adders))

    def add(self, x: Interval, y: Interval | Tensor | int) -> Interval:
        return self._added(super().add(x, y))

    def subtract(self, x: Interval, y: Interval | Tensor | int) -> Interval:
        return self._added(super().subtract(x, y))

    def multiply(self, x: Interval, y: Interval | Tensor | int) -> Interval:
        result = super().multiply(x, y)
        if isinstance(y, Interval):
            return self._added(result, min(bits_for(*x.ends), bits_for(*y.ends)))
        digits = _digits(*torch.as_tensor(y).flatten().tolist())
        return self._added(result, round(sum(max(0, n - 1) for n in digits) / len(digits)))


def _digits(*numbers: int) -> list[int]:
    return [int(n) for n in signed_digits(np.array(numbers))]


@has_formula(ComposedOp)
def composed(site: Site) -> Result:
    """The adders and choices that the meaning of an op is composed of."""
    count = AdderCount(site.codes)
    site.op.meaning(count, *count.inputs)
    new = site.result
    lut = K.adder * count.adder_bits + K.relu * count.chosen_bits
    delay = count.additions * K.addition / site.period
    return new._replace(ready=new.ready + delay), Cost(adder_bits=count.adder_bits, lut=lut)


@has_formula(LeakyReluCodes)
def leaky_relu(site: Site) -> Result:
    """Two products with constants, and a choice between them."""
    new = site.result
    factors = np.array([site.op.numerator, site.op.denominator])
    adders = int(np.maximum(0, signed_digits(factors) - 1).sum())
    adder_bits = float(new.size * adders * new.bits)
    lut = K.adder * adder_bits + K.relu * new.size * new.bits
    delay = (adders > 0) * K.addition / site.period
    return new._replace(ready=new.ready + delay), Cost(adder_bits=adder_bits, lut=lut)


@has_formula(Lookup)
def lookup(site: Site) -> Result:
    to = span_of(site.node.codes)
    return formula.tabulated(site.x, to.low, to.high, to.exponent, site.period)


@has_formula(NeuronTables)
def neuron_tables(site: Site) -> Result:
    """A table for each result, of the bits of the inputs that it reads; a register precedes it."""
    node, op, x = site.node, site.op, site.x
    begins = x.layer != node.source
    ready = math.ceil(x.ready) if begins else x.ready
    bits, counts = np.unique((op.reads >= 0).sum(1).numpy() * x.bits, return_counts=True)
    result = span_of(node.codes, layer=node.source)
    each = [formula.table_luts(int(m), result.bits) for m in bits]
    held = x.size * x.bits if begins and x.layer else 0
    delay = K.chosen * max(1, int(bits.max()) - LUT_INPUTS) / 2 / site.period
    cost = Cost(lut=K.neuron * float(counts @ np.array(each)), ff=held)
    return result._replace(ready=ready + delay), cost


@has_formula(ReshapeCodes, PermuteCodes, PickCodes)
def moved(site: Site) -> Result:
    x = site.x
    if x.widths is None:
        return x, Cost()
    widths = site.op.run(torch.from_numpy(x.widths).unsqueeze(0))[0]
    return x._replace(widths=widths.numpy()), Cost()


@has_formula(Refine)
def refined(site: Site) -> Result:
    """Zeros behind the last bit are wires."""
    return site.result._replace(widths=site.x.widths), Cost()


@has_formula(PadCodes, ConcatCodes, ConstantCodes)
def wired(site: Site) -> Result:
    """Ops that need wires only."""
    return site.result, Cost()


@has_formula(AddCodes, SubtractCodes)
def added(site: Site) -> Result:
    one, other = site.inputs
    to = site.node.codes
    return formula.added(one, other, to.lowest, to.highest, site.period)


@has_formula(MultiplyCodes)
def multiplied(site: Site) -> Result:
    """A product of two values: an adder for each bit of the narrower one."""
    one, other = site.inputs
    new = site.result
    products = new.size * one.bits * other.bits
    delay = math.log2(min(one.bits, other.bits) + 1) * K.addition / site.period
    cost = Cost(ebops=products, adder_bits=products, lut=K.adder * products)
    return new._replace(ready=new.ready + delay), cost


@has_formula(MaxPoolCodes)
def max_pool(site: Site) -> Result:
    count, choices = pool_choices(site.op, site.codes[0], site.node.codes)
    return formula.largest(site.x, count, choices, site.period)


def pool_choices(op: MaxPoolCodes, x: Codes, result: Codes) -> tuple[int, int]:
    """Return the number of results of a max pool, and the choices of one of two that it makes."""
    count = math.prod(result.shape)
    inside, _ = inside_counts(x.shape[1:], op.kernel, op.stride, op.padding, op.dilation)
    return count, max(0, int(inside.sum()) * result.shape[0] - count)


@has_formula(AvgPoolCodes)
def avg_pool(site: Site) -> Result:
    new = site.result
    each = math.prod(site.op.kernel) - 1
    adder_bits = new.size * each * (site.x.bits + new.bits) / 2
    depth = math.ceil(math.log2(each + 1))
    delay = depth * K.addition / site.period
    cost = Cost(adder_bits=adder_bits, lut=K.adder * adder_bits)
    return new._replace(ready=new.ready + delay), cost


@has_formula(ArgMaxCodes)
def argmax(site: Site) -> Result:
    x, new = site.x, site.result
    choices = x.size - new.size
    _, cost = formula.largest(x, new.size, choices, site.period)
    depth = math.ceil(math.log2(x.size / max(1, new.size)))
    ready = x.ready + depth * (K.addition + K.chosen) / site.period
    return new._replace(ready=ready), cost
