"""Products of two values."""

from __future__ import annotations

from dataclasses import dataclass

from chop.integers.builders import Builder, Value
from chop.integers.codes import Codes
from chop.integers.op import ComposedOp
from chop.integers.rounding import SINGLE
from chop.integers.scale import Scale


@dataclass(frozen=True, eq=False)
class MultiplyCodes(ComposedOp):
    """a · b, with the product of both scales."""

    wide = "a product"

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        return b.multiply(*inputs)

    def result_scale(self, *codes: Codes) -> Scale:
        one, other = codes
        return one.scale.times(other.scale)

    def exact_in_float(self, *codes: Codes) -> bool:
        one, other = codes
        powers = one.scale.power_of_two and other.scale.power_of_two
        return powers and one.largest * other.largest <= SINGLE

    @property
    def label(self) -> str:
        return "Mul"
