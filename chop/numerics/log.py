"""Signed powers of two."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.numerics.base import NumberFormat
from chop.numerics.exponents import exp2

SQRT_HALF = 0.5**0.5


def nearest_exponent(x: Tensor) -> Tensor:
    """log2|x|, rounded: the border between 2^k and 2^(k+1) is their geometric mean.

    The border is irrational, so no float lies on it, and its own rounding cannot matter.
    """
    mantissa, exponent = torch.frexp(x)
    return exponent - (mantissa.abs() < SQRT_HALF).to(exponent.dtype)


@dataclass(frozen=True)
class Log(NumberFormat, name="log", suffix="Log"):
    """A sign bit, then `width - 1` bits of exponent offset by `exponent_bias`.

    There is no zero: it becomes the smallest positive value, unless `zero` grants it a code.
    `exponent_bias` None stands for 2^(width-2) - 1.
    """

    width: int
    exponent_bias: int
    zero: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 2, 9)
        self.fill_in("exponent_bias", 2 ** (self.width - 2) - 1 if self.width > 1 else 0)
        self.require_whole("exponent_bias", -140, 140)

    @property
    def highest(self) -> int:
        return int(2 ** (self.width - 1)) - 1 - self.exponent_bias

    def round(self, x: Tensor) -> Tensor:
        inside = x.clamp(-self.largest, self.largest)
        exponent = nearest_exponent(inside).clamp(-self.exponent_bias, self.highest)
        # frexp gives zero the exponent 0, which would make it one
        exponent = torch.where(inside == 0, -self.exponent_bias, exponent)
        magnitude = exp2(exponent, x.dtype)
        rounded = torch.where(inside < 0, -magnitude, magnitude)
        rounded = torch.where(x.isnan(), x, rounded)
        return torch.where(x == 0, 0.0, rounded) if self.zero else rounded

    @property
    def bits(self) -> float:
        return self.width

    @property
    def largest(self) -> float:
        return 2.0**self.highest

    @property
    def smallest(self) -> float:
        return 2.0**-self.exponent_bias

    def grid(self) -> Tensor:
        exponents = torch.arange(-self.exponent_bias, self.highest + 1, dtype=torch.float64)
        positive = exponents.exp2()
        zero = [torch.zeros(1, dtype=torch.float64)] if self.zero else []
        return torch.cat([-positive.flip(0), *zero, positive])
