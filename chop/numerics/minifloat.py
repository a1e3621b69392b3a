"""Small floating point: a sign, a few bits of exponent, a few bits of mantissa."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chop.numerics.base import NumberFormat
from chop.numerics.exponents import (
    LAYOUTS,
    are_normal,
    exp2,
    floor_log2,
    floor_power,
    round_to_step,
)
from chop.numerics.fast.plans import RoundingPlan, minifloat_plan
from chop.numerics.scratch import scratch


def round_to_minifloat(
    x: Tensor,
    fraction: int,
    lowest: int | Tensor,
    highest: int | Tensor,
    significand: float | None = None,
) -> Tensor:
    """Round to the nearest number with `fraction` bits after the leading one.

    Below 2**lowest the step is constant (subnormals); beyond the largest number, 2**highest times
    the largest `significand`, it saturates. Rounding carries into the next power of two.
    """
    layout = LAYOUTS[x.dtype]
    largest = significand or 2 - 2.0 ** -min(fraction, layout.mantissa)
    if isinstance(highest, Tensor):
        limits = largest * exp2(highest, x.dtype)
        inside = torch.maximum(x, -limits)  # clamping by tensors is many times slower on a CPU
        inside = torch.minimum(inside, limits, out=scratch(inside))
    else:
        limit = largest * 2.0 ** min(highest, layout.bias)
        inside = x.clamp(-limit, limit)
    if are_normal(lowest, x.dtype):  # then all subnormal numbers have the smallest step
        step, out = _steps(inside, fraction, lowest), scratch(inside)
        whole = torch.div(inside, step, out=out)
        whole = torch.round(whole, out=out)
        return torch.mul(whole, step, out=out)
    exponent: Tensor = floor_log2(inside).clamp(min=lowest)
    return round_to_step(inside, exponent - fraction)


def _steps(x: Tensor, fraction: int, lowest: int | Tensor) -> Tensor:
    """The spacing of representable numbers near each `x`, at least the smallest number."""
    power = floor_power(x)
    step = torch.mul(power, 2.0**-fraction, out=scratch(power))
    if isinstance(lowest, Tensor):
        return torch.maximum(step, exp2(lowest - fraction, x.dtype), out=scratch(step))
    layout = LAYOUTS[x.dtype]
    smallest = 2.0 ** max(lowest - fraction, 1 - layout.bias - layout.mantissa)
    return torch.clamp(step, min=smallest, out=scratch(step))


@dataclass(frozen=True)
class _Minifloat(NumberFormat):
    light: ClassVar[bool] = True
    least_fraction: ClassVar[int] = 0

    width: int
    exponent_width: int
    exponent_bias: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 2 + self.least_fraction, 32)
        self.require_whole("exponent_width", 1, min(8, self.width - 1 - self.least_fraction))
        self.fill_in("exponent_bias", 2 ** (self.exponent_width - 1) - 1)
        self.require_whole("exponent_bias", -126, 140)

    @property
    def fraction(self) -> int:
        return self.width - self.exponent_width - 1

    @property
    def highest(self) -> int:
        """The largest exponent; all codes are numbers, none is infinity or NaN."""
        return int(2**self.exponent_width) - 1 - self.exponent_bias

    @property
    def bits(self) -> float:
        return self.width

    def _signed(self, magnitudes: Tensor) -> Tensor:
        positive = magnitudes.unique()
        return torch.cat([-positive.flip(0)[positive.flip(0) > 0], positive])


@dataclass(frozen=True)
class MinifloatIEEE(
    _Minifloat, name="minifloat_ieee", suffix="MinifloatIEEE", aliases=("minifloat_simple",)
):
    """Hidden leading one and subnormals; `exponent_bias` defaults to 2^(e-1) - 1."""

    def round(self, x: Tensor) -> Tensor:
        return round_to_minifloat(x, self.fraction, 1 - self.exponent_bias, self.highest)

    def plan(self, device: torch.device) -> RoundingPlan:
        return minifloat_plan(self.fraction, 1 - self.exponent_bias, self.highest)

    @property
    def largest(self) -> float:
        return (2 - 2.0**-self.fraction) * 2.0**self.highest

    @property
    def smallest(self) -> float:
        return 2.0 ** (1 - self.exponent_bias - self.fraction)

    def values(self) -> Tensor:
        mantissas = torch.arange(2**self.fraction, dtype=torch.float64) * 2.0**-self.fraction
        exponents = torch.arange(1 - self.exponent_bias, self.highest + 1, dtype=torch.float64)
        normal = (1 + mantissas) * exponents.exp2()[:, None]
        return self._signed(
            torch.cat([mantissas * 2.0 ** (1 - self.exponent_bias), normal.ravel()])
        )


@dataclass(frozen=True)
class MinifloatDenorm(_Minifloat, name="minifloat_denorm", suffix="MinifloatDenorm"):
    """No hidden leading one: a fraction below one times a power of two."""

    least_fraction: ClassVar[int] = 1

    def round(self, x: Tensor) -> Tensor:
        # the leading one is the first bit of the fraction
        return round_to_minifloat(x, self.fraction - 1, -self.exponent_bias - 1, self.highest - 1)

    def plan(self, device: torch.device) -> RoundingPlan:
        return minifloat_plan(self.fraction - 1, -self.exponent_bias - 1, self.highest - 1)

    @property
    def largest(self) -> float:
        return (1 - 2.0**-self.fraction) * 2.0**self.highest

    @property
    def smallest(self) -> float:
        return 2.0 ** (-self.exponent_bias - self.fraction)

    def values(self) -> Tensor:
        mantissas = torch.arange(2**self.fraction, dtype=torch.float64) * 2.0**-self.fraction
        exponents = torch.arange(-self.exponent_bias, self.highest + 1, dtype=torch.float64)
        return self._signed((mantissas * exponents.exp2()[:, None]).ravel())
