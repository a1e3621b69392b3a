"""Products of two values."""

from __future__ import annotations

from dataclasses import dataclass

from chop.integers.builders import Builder, Value
from chop.integers.codes import Codes
from chop.integers.op import ArithmeticOp
from chop.integers.scale import Scale


@dataclass(frozen=True, eq=False)
class MultiplyCodes(ArithmeticOp):
    """a · b, with the product of both scales."""

    wide = "a product"

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        return b.multiply(*inputs)

    def result_scale(self, *codes: Codes) -> Scale:
        one, other = codes
        return one.scale.times(other.scale)

    @property
    def label(self) -> str:
        return "Mul"
