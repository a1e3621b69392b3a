"""Codes times one number if they are negative, and another if not."""

from __future__ import annotations

from dataclasses import dataclass

from chop.integers.builders import Builder, Value
from chop.integers.codes import Codes
from chop.integers.op import ComposedOp
from chop.integers.rounding import SINGLE
from chop.integers.scale import Scale


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
