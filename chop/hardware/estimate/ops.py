"""The formula of each integer op: one function per op class, registered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from chop.hardware.estimate import formula
from chop.hardware.estimate.coefficients import FORMULA as K
from chop.hardware.estimate.cost import Cost
from chop.hardware.estimate.edges import edge_facts
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
    EdgeTables,
    IntegerNode,
    IntegerOp,
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
    ResidualSigns,
    SubtractCodes,
    Word,
)
from chop.integers.weighted import WeightedOp
from chop.registry import ByClass

__all__ = ["FORMULAS", "facts_of", "has_formula", "span_of", "target_of"]

Result = tuple[CodeRange, Cost]
# takes the op, its node, the ranges of its inputs, what they are, and the clock period
Formula = Callable[[Any, IntegerNode, Sequence[CodeRange], Sequence[Codes], float], Result]

# decorates the formula of one or more op classes and their subclasses
FORMULAS: ByClass[Formula] = ByClass("formula for its cost")
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
def quantize_input(
    op: QuantizeInput,
    node: IntegerNode,
    xs: Sequence[CodeRange],
    codes: Sequence[Codes],
    period: float,
) -> Result:
    return own_widths(span_of(node.codes), op.word, node.codes), Cost()


@has_formula(LinearCodes, ConvCodes)
def weighted(
    op: WeightedOp,
    node: IntegerNode,
    xs: Sequence[CodeRange],
    codes: Sequence[Codes],
    period: float,
) -> Result:
    (x,) = xs
    if x.widths is None:
        return formula.weighted(x, facts_of(op, codes[0], node.codes), node.source, period)
    facts = facts_of(without_dead_inputs(op, x), codes[0], node.codes)
    mean = product_bits(op, x) / max(1, facts.bits)
    new, cost = formula.weighted(x, facts, node.source, period, mean)
    return span_of(node.codes, new.ready, new.layer), cost


@has_formula(ChannelAffine)
def channel_affine(
    op: ChannelAffine,
    node: IntegerNode,
    xs: Sequence[CodeRange],
    codes: Sequence[Codes],
    period: float,
) -> Result:
    (x,) = xs
    if not codes[0].scale.uniform:
        x = span_of(codes[0], x.ready, x.layer)
    return formula.scaled(x, norm_facts(op, x), period)


def norm_facts(op: ChannelAffine, x: CodeRange) -> WeightFacts:
    """Return the facts of a batch norm of values with one exponent."""
    exponent = int(op.scale.exponent)
    places = x.size // len(op.multiplier)
    column, offset = op.multiplier.unsqueeze(1), bias_grid(op.offset, exponent)
    return weight_facts(column, exponent - x.exponent, offset, places, places)


@has_formula(Requantize)
def requantize(
    op: Requantize,
    node: IntegerNode,
    xs: Sequence[CodeRange],
    codes: Sequence[Codes],
    period: float,
) -> Result:
    (x,) = xs
    if isinstance(op.word, MixedWord):
        return rounded_by_element(op.word, node, x, period)
    target = target_of(op.word)
    if codes[0].scale.uniform and codes[0].scale.power_of_two and op.multiplier is None:
        return formula.requantized(x, target, period)
    new, cost = formula.requantized(x, target, period)
    span = span_of(node.codes, new.ready, x.layer)
    if op.multiplier is None and op.divisor is not None and int(op.divisor.max()) == 1:
        return span, cost
    # a product with a number of 31 bits, of whose signed digits a third is not zero
    adder_bits = x.size * 10 * (x.bits + 16)
    return span, cost.plus(Cost(adder_bits=adder_bits, lut=K.adder * adder_bits))


@has_formula(ReluCodes)
def relu(
    op: ReluCodes, node: IntegerNode, xs: Sequence[CodeRange], codes: Sequence[Codes], period: float
) -> Result:
    return formula.relu(xs[0])


@has_formula(ClampCodes)
def clamp(
    op: ClampCodes,
    node: IntegerNode,
    xs: Sequence[CodeRange],
    codes: Sequence[Codes],
    period: float,
) -> Result:
    (x,) = xs
    target = Target(max(op.low, x.low), min(op.high, x.high), x.exponent, "floor", wraps=False)
    return formula.requantized(x, target, period)


@has_formula(LeakyReluCodes)
def leaky_relu(
    op: LeakyReluCodes,
    node: IntegerNode,
    xs: Sequence[CodeRange],
    codes: Sequence[Codes],
    period: float,
) -> Result:
    """Two products with constants, and a choice between them."""
    new = _like(node, xs)
    factors = np.array([op.numerator, op.denominator])
    adders = int(np.maximum(0, signed_digits(factors) - 1).sum())
    adder_bits = float(new.size * adders * new.bits)
    lut = K.adder * adder_bits + K.relu * new.size * new.bits
    delay = (adders > 0) * K.addition / period
    return new._replace(ready=new.ready + delay), Cost(adder_bits=adder_bits, lut=lut)


@has_formula(Lookup)
def lookup(
    op: Lookup, node: IntegerNode, xs: Sequence[CodeRange], codes: Sequence[Codes], period: float
) -> Result:
    (x,) = xs
    low, high = node.codes.lowest, node.codes.highest
    exponent = int(node.codes.scale.exponent.min())
    return formula.tabulated(x, low, high, exponent, period)


@has_formula(NeuronTables)
def neuron_tables(
    op: NeuronTables,
    node: IntegerNode,
    xs: Sequence[CodeRange],
    codes: Sequence[Codes],
    period: float,
) -> Result:
    """A table for each result, of the bits of the inputs that it reads; a register precedes it."""
    (x,) = xs
    begins = x.layer != node.source
    ready = math.ceil(x.ready) if begins else x.ready
    bits, counts = np.unique((op.reads >= 0).sum(1).numpy() * x.bits, return_counts=True)
    result = span_of(node.codes, layer=node.source)
    each = [formula.table_luts(int(m), result.bits) for m in bits]
    held = x.size * x.bits if begins and x.layer else 0
    delay = K.chosen * max(1, int(bits.max()) - LUT_INPUTS) / 2 / period
    cost = Cost(lut=K.neuron * float(counts @ np.array(each)), ff=held)
    return result._replace(ready=ready + delay), cost


@has_formula(EdgeTables)
def edge_tables(
    op: EdgeTables,
    node: IntegerNode,
    xs: Sequence[CodeRange],
    codes: Sequence[Codes],
    period: float,
) -> Result:
    """A table for each edge, and adders of their results; a register precedes them."""
    (x,) = xs
    result = span_of(node.codes, layer=node.source)
    rows = math.prod(node.codes.shape[:-1])
    held = float(x.size * x.bits if x.layer else 0)
    if not len(op.reads):
        return result._replace(ready=math.ceil(x.ready)), Cost(ff=held)
    facts = edge_facts(op, codes[0])
    delay = (K.chosen * facts.table_depth / 2 + K.addition * facts.depth) / period
    ready = math.ceil(x.ready) + delay
    adder_bits = rows * facts.adder_bits
    held += K.held * delay * adder_bits / max(1, facts.depth)
    lut = K.neuron * rows * facts.table_luts + K.adder * adder_bits
    return result._replace(ready=ready), Cost(0, adder_bits, lut, held)


@has_formula(ResidualSigns)
def residual_signs(
    op: ResidualSigns,
    node: IntegerNode,
    xs: Sequence[CodeRange],
    codes: Sequence[Codes],
    period: float,
) -> Result:
    """A table of a few bits, or for each threshold a comparison, which is half an adder."""
    (x,) = xs
    compared = K.adder / 2 * x.bits * len(op.thresholds)
    each = min(K.table * formula.table_luts(x.bits, op.levels), compared)
    new = _like(node, xs)
    return new._replace(ready=new.ready + K.addition / period), Cost(lut=x.size * each)


@has_formula(ReshapeCodes, PermuteCodes, PickCodes)
def moved(
    op: IntegerOp, node: IntegerNode, xs: Sequence[CodeRange], codes: Sequence[Codes], period: float
) -> Result:
    (x,) = xs
    if x.widths is None:
        return x, Cost()
    widths = op.run(torch.from_numpy(x.widths).unsqueeze(0))[0]
    return x._replace(widths=widths.numpy()), Cost()


@has_formula(Refine)
def refined(
    op: Refine, node: IntegerNode, xs: Sequence[CodeRange], codes: Sequence[Codes], period: float
) -> Result:
    """Zeros behind the last bit are wires."""
    return _like(node, xs)._replace(widths=xs[0].widths), Cost()


@has_formula(PadCodes, ConcatCodes, ConstantCodes)
def wired(
    op: IntegerOp, node: IntegerNode, xs: Sequence[CodeRange], codes: Sequence[Codes], period: float
) -> Result:
    """Ops that need wires only."""
    return _like(node, xs), Cost()


@has_formula(AddCodes, SubtractCodes)
def added(
    op: IntegerOp, node: IntegerNode, xs: Sequence[CodeRange], codes: Sequence[Codes], period: float
) -> Result:
    one, other = xs
    return formula.added(one, other, node.codes.lowest, node.codes.highest, period)


@has_formula(MultiplyCodes)
def multiplied(
    op: MultiplyCodes,
    node: IntegerNode,
    xs: Sequence[CodeRange],
    codes: Sequence[Codes],
    period: float,
) -> Result:
    """A product of two values: an adder for each bit of the narrower one."""
    one, other = xs
    new = _like(node, xs)
    products = new.size * one.bits * other.bits
    delay = math.log2(min(one.bits, other.bits) + 1) * K.addition / period
    cost = Cost(ebops=products, adder_bits=products, lut=K.adder * products)
    return new._replace(ready=new.ready + delay), cost


@has_formula(MaxPoolCodes)
def max_pool(
    op: MaxPoolCodes,
    node: IntegerNode,
    xs: Sequence[CodeRange],
    codes: Sequence[Codes],
    period: float,
) -> Result:
    return formula.largest(xs[0], *pool_choices(op, codes[0], node.codes), period)


def pool_choices(op: MaxPoolCodes, x: Codes, result: Codes) -> tuple[int, int]:
    """Return the number of results of a max pool, and the choices of one of two that it makes."""
    count = math.prod(result.shape)
    inside, _ = inside_counts(x.shape[1:], op.kernel, op.stride, op.padding, op.dilation)
    return count, max(0, int(inside.sum()) * result.shape[0] - count)


@has_formula(AvgPoolCodes)
def avg_pool(
    op: AvgPoolCodes,
    node: IntegerNode,
    xs: Sequence[CodeRange],
    codes: Sequence[Codes],
    period: float,
) -> Result:
    new = _like(node, xs)
    each = math.prod(op.kernel) - 1
    adder_bits = new.size * each * (xs[0].bits + new.bits) / 2
    depth = math.ceil(math.log2(each + 1))
    delay = depth * K.addition / period
    cost = Cost(adder_bits=adder_bits, lut=K.adder * adder_bits)
    return new._replace(ready=new.ready + delay), cost


@has_formula(ArgMaxCodes)
def argmax(
    op: ArgMaxCodes,
    node: IntegerNode,
    xs: Sequence[CodeRange],
    codes: Sequence[Codes],
    period: float,
) -> Result:
    (x,) = xs
    new = _like(node, xs)
    choices = x.size - new.size
    _, cost = formula.largest(x, new.size, choices, period)
    depth = math.ceil(math.log2(x.size / max(1, new.size)))
    ready = x.ready + depth * (K.addition + K.chosen) / period
    return new._replace(ready=ready), cost


def _like(node: IntegerNode, xs: Sequence[CodeRange]) -> CodeRange:
    """Return the range that interval analysis gives the result of a node."""
    ready = max((x.ready for x in xs), default=0.0)
    layer = next((x.layer for x in xs if x.layer), "")
    return span_of(node.codes, ready, layer)
