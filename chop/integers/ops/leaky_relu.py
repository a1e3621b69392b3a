"""Codes times one number if they are negative, and another if not."""

from __future__ import annotations

from dataclasses import dataclass

from chop.integers.builders import Builder, Value
from chop.integers.codes import Codes
from chop.integers.op import ArithmeticOp
from chop.integers.scale import Scale


@dataclass(frozen=True, eq=False)
class LeakyReluCodes(ArithmeticOp):
    """code · denominator, or code · numerator if it is negative, in steps of 1 / denominator."""

    numerator: int
    denominator: int
    wide = "a product"

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        (x,) = inputs
        return b.multiply_by_sign(x, self.numerator, self.denominator)

    def result_scale(self, *codes: Codes) -> Scale:
        return codes[0].scale.divided(self.denominator)

    @property
    def label(self) -> str:
        return f"LeakyRelu {self.numerator}/{self.denominator}"
