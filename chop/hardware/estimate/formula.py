"""Costs from shapes, widths and the digits of weights alone, in microseconds.

A value is described by one range for all of its codes. Each function takes the ranges of the
inputs of an op, and returns the range of its result and the cost. They are called for the nodes of
an integer graph, and by a search for the layers of a network that it has not converted.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from chop.hardware.estimate.coefficients import FORMULA as K
from chop.hardware.estimate.cost import Cost
from chop.hardware.estimate.weights import WeightFacts
from chop.integers.codes import bits_for
from chop.numerics.grid import Rounding

__all__ = ["CodeRange", "Target", "table_luts"]

LUT_INPUTS = 5  # of each of the two functions in a LUT


class CodeRange(NamedTuple):
    """The range of `size` codes in steps of 2^`exponent`, and when they are there, in cycles."""

    low: int
    high: int
    exponent: int
    size: int
    ready: float = 0.0
    layer: str = ""  # that computes them; none for an input
    widths: Any = None  # of each code, as an array, where they differ

    @property
    def bits(self) -> int:
        return bits_for(self.low, self.high) if self.low != self.high else 0

    @property
    def stored(self) -> int:
        """The bits of all codes."""
        return self.size * self.bits if self.widths is None else int(self.widths.sum())


class Target(NamedTuple):
    """A format that values are rounded to."""

    low: int
    high: int
    exponent: int
    rounding: Rounding
    wraps: bool


def weighted(
    x: CodeRange, facts: WeightFacts, layer: str, period: float, mean_bits: float | None = None
) -> tuple[CodeRange, Cost]:
    """Return the sums of products of a layer, which begins after a register.

    `mean_bits` is the mean width of the inputs of products, where widths differ.
    """
    bits: Any = x.bits if mean_bits is None else mean_bits
    product = x.exponent + facts.exponent
    low, high = facts.bounds(x.low, x.high, product)
    depth = facts.depth
    width = K.width + K.width_data * bits + K.width_weight * facts.mean_bits + K.width_depth * depth
    adder_bits = facts.shared_adders * max(1.0, width)
    delay = K.addition * (depth + (facts.bias_bits > 0)) / period
    held = K.held * delay * adder_bits / max(1.0, depth)
    held += x.stored if x.layer else 0
    cost = Cost(bits * facts.bits + facts.bias_bits, adder_bits, K.adder * adder_bits, held)
    exponent = product - facts.shift(product)
    return CodeRange(low, high, exponent, facts.count, math.ceil(x.ready) + delay, layer), cost


def scaled(x: CodeRange, facts: WeightFacts, period: float) -> tuple[CodeRange, Cost]:
    """Return products with one constant per channel, plus another, in the input's layer."""
    low, high = facts.bounds(x.low, x.high, x.exponent + facts.exponent)
    bits = bits_for(low, high)
    adder_bits = K.scaled * facts.unshared_adders * bits
    delay = K.addition * (facts.depth + 1) / period
    held = K.held * delay * adder_bits / max(1.0, facts.depth)
    cost = Cost(x.bits * facts.bits + facts.bias_bits, adder_bits, K.adder * adder_bits, held)
    exponent, ready = x.exponent + facts.exponent, x.ready + delay
    return CodeRange(low, high, exponent, facts.count, ready, x.layer), cost


def requantized(x: CodeRange, to: Target, period: float) -> tuple[CodeRange, Cost]:
    """Return values rounded to another format."""
    shift = to.exponent - x.exponent
    low, high = (_shifted(end, shift, to.rounding) for end in (x.low, x.high))
    span = bits_for(low, high)
    lut, delay = 0.0, 0.0
    if shift > 0 and to.rounding != "floor" and x.low != x.high:
        lut, delay = K.rounding * span, K.rounded
    beyond = low < to.low or high > to.high
    if beyond and not to.wraps:
        sides = (low < to.low) + (high > to.high)
        lut += K.saturation * (bits_for(to.low, to.high) + sides * span) / 2
        delay += sides * K.chosen / 2
    if beyond:
        low, high = (
            (to.low, to.high)
            if to.wraps
            else (min(max(end, to.low), to.high) for end in (low, high))
        )
    new = CodeRange(low, high, to.exponent, x.size, x.ready + delay / period, x.layer)
    return new, Cost(lut=x.size * lut)


def _shifted(code: int, shift: int, rounding: Rounding) -> int:
    """Return code / 2^shift as an integer."""
    if shift <= 0:
        return code << -shift
    if rounding == "floor":
        return code >> shift
    half = 1 << (shift - 1)
    if rounding == "up":
        return (code + half) >> shift
    return (code + half - 1 + ((code >> shift) & 1)) >> shift


def relu(x: CodeRange) -> tuple[CodeRange, Cost]:
    """Return values without negative ones."""
    if x.low >= 0:
        return x, Cost()
    new = x._replace(low=0, high=max(0, x.high), widths=None)
    return new, Cost(lut=K.relu * x.size * new.bits)


def largest(x: CodeRange, count: int, choices: int, period: float) -> tuple[CodeRange, Cost]:
    """Return the range and cost of `count` maxima built from `choices` 2-input max units."""
    each = choices / max(1, count)
    depth = math.ceil(math.log2(each + 1)) if each else 0
    ready = x.ready + depth * (K.addition + K.chosen) / period
    return x._replace(size=count, ready=ready, widths=None), Cost(lut=K.choice * choices * x.bits)


def added(
    x: CodeRange, other: CodeRange, low: int, high: int, period: float
) -> tuple[CodeRange, Cost]:
    """Return sums or differences of two values on one grid, from `low` to `high`."""
    count, ready = max(x.size, other.size), max(x.ready, other.ready)
    bits = bits_for(low, high)
    ready += K.addition / period
    new = CodeRange(low, high, x.exponent, count, ready, x.layer or other.layer)
    return new, Cost(adder_bits=count * bits, lut=K.adder * count * bits)


def tabulated(
    x: CodeRange, low: int, high: int, exponent: int, period: float
) -> tuple[CodeRange, Cost]:
    """Return the results of one table for all codes."""
    lut = K.table * x.size * table_luts(x.bits, bits_for(low, high))
    ready = x.ready + K.chosen * max(1, x.bits - LUT_INPUTS) / 2 / period
    return CodeRange(low, high, exponent, x.size, ready, x.layer), Cost(lut=lut)


def table_luts(inputs: int, outputs: int) -> float:
    """Return the LUTs of a table: two functions of five inputs share one.

    >>> table_luts(5, 4), table_luts(6, 4), table_luts(8, 1)
    (2.0, 4.0, 4.0)
    """
    each = 2.0 ** (inputs - LUT_INPUTS) if inputs >= LUT_INPUTS else inputs / LUT_INPUTS
    return each * outputs / 2
