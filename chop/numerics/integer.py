"""Fixed point: an integer of `width` bits, `frac_width` of them after the binary point."""

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from chop.numerics.base import NumberFormat, straight_through


@dataclass(frozen=True)
class Integer(NumberFormat, name="integer", suffix="Integer"):
    """Two's complement; rounds to nearest, ties to even, and saturates."""

    width: int
    frac_width: int
    signed: bool = True

    def for_operand(self, operand: str, *, non_negative: bool = False) -> Self:
        return replace(self, signed=not non_negative)

    def quantize(self, x: Tensor) -> Tensor:
        low = -(2 ** (self.width - 1)) if self.signed else 0
        high = low + 2**self.width - 1
        scale = 2.0**self.frac_width
        return straight_through(x, (x * scale).round().clamp(low, high) / scale)

    @property
    def bits(self) -> float:
        return self.width
