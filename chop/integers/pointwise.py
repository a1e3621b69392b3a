"""Ops on each code alone."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from chop.integers.builders import Builder, Value
from chop.integers.codes import Codes, Word
from chop.integers.ops import ComposedOp, IntegerOp, MonotoneOp
from chop.integers.rounding import SINGLE
from chop.integers.scale import Scale


@dataclass(frozen=True, eq=False)
class ReluCodes(MonotoneOp, ComposedOp):
    """max(code, 0)."""

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        (x,) = inputs
        return b.max(x, 0)


@dataclass(frozen=True, eq=False)
class ClampCodes(MonotoneOp, ComposedOp):
    """min(max(code, low), high), as relu6 and hardtanh compute."""

    low: int
    high: int

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        (x,) = inputs
        return b.clamp(x, self.low, self.high)

    def exact_in_float(self, *codes: Codes) -> bool:
        return codes[0].scale.power_of_two


@dataclass(frozen=True, eq=False)
class LeakyReluCodes(ComposedOp):
    """code · denominator, or code · numerator if it is negative, in steps of 1 / denominator."""

    numerator: int
    denominator: int
    wide = "a product"

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        (x,) = inputs
        return b.multiply_by_sign(x, self.numerator, self.denominator)

    def result_scale(self, *codes: Codes) -> Scale:
        return codes[0].scale.divided(self.denominator)

    def exact_in_float(self, *codes: Codes) -> bool:
        (x,) = codes
        power = self.denominator & (self.denominator - 1) == 0
        largest = x.largest * max(abs(self.numerator), self.denominator)
        return power and x.scale.power_of_two and largest <= SINGLE

    @property
    def label(self) -> str:
        return f"LeakyRelu {self.numerator}/{self.denominator}"


@dataclass(frozen=True, eq=False)
class Lookup(IntegerOp):
    """A table with one entry per code of the input: any function, rounded to a word."""

    entries: Tensor
    lowest: int
    word: Word

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return self.entries.to(x.device)[x - self.lowest]

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        reached = self.entries[x.lowest - self.lowest : x.highest - self.lowest + 1]
        return self.word.codes(x.shape, reached.min(), reached.max())

    @property
    def label(self) -> str:
        return f"Table {len(self.entries)}"


@dataclass(frozen=True, eq=False)
class Refine(ComposedOp):
    """code · factor in steps that are smaller by the factor: the same values on a finer grid."""

    factor: Tensor
    wide = "a value on a finer grid"

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        (x,) = inputs
        return b.multiply(x, self.factor)

    def result_scale(self, *codes: Codes) -> Scale:
        return codes[0].scale.divided(self.factor)


@dataclass(frozen=True, eq=False)
class ConstantCodes(ComposedOp):
    """Codes that are the same for every sample."""

    value: Tensor
    scale: Scale

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        return b.constant(self.value)

    def result_scale(self, *codes: Codes) -> Scale:
        return self.scale
