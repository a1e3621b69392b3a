"""The 8-bit floats of current accelerators, as torch casts to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chop.numerics.base import NumberFormat
from chop.numerics.fast.plans import RoundingPlan

DTYPES = {(4, 3): torch.float8_e4m3fn, (5, 2): torch.float8_e5m2}
FRACTIONS = dict(DTYPES.keys())  # by the width of the exponent


@dataclass(frozen=True)
class FP8(NumberFormat, name="fp8", suffix="FP8"):
    """E4M3 or E5M2, bit for bit as torch casts, including values that are too large.

    These become infinite in E5M2, and the largest value or NaN (depending on the version of torch)
    in E4M3, which has no infinity; with `saturate` they become the largest value, as in the other
    formats. A double is rounded twice, first to single precision. `frac_width` defaults to the
    bits that the exponent leaves.
    """

    light: ClassVar[bool] = True

    exponent_width: int
    frac_width: int
    saturate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exponent_width in FRACTIONS:
            self.fill_in("frac_width", FRACTIONS[self.exponent_width])
        kind = (self.exponent_width, self.frac_width)
        self.require(kind in DTYPES, "exponent_width and frac_width must be 4 and 3, or 5 and 2")
        self.require_flags("saturate")

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.exponent_width, self.frac_width]

    def round(self, x: Tensor) -> Tensor:
        return self.cast(x).to(x.dtype)

    def cast(self, x: Tensor) -> Tensor:
        """Return the nearest values in torch's dtype of 8 bits."""
        inside = x.clamp(-self.largest, self.largest) if self.saturate else x
        return inside.to(self.dtype)

    def rounded(self, x: Tensor) -> Tensor:
        return self.round(x)

    def plan(self, device: torch.device) -> RoundingPlan | None:
        lowest = {4: -6, 5: -14}[self.exponent_width]
        if self.saturate:
            return RoundingPlan("minifloat", (self.largest, math.inf, 0.0, lowest, self.frac_width))
        # the result beyond the largest value differs between versions of torch
        beyond = torch.tensor([1e6, 1e30, math.inf], device=device).to(self.dtype).float().tolist()
        if any(str(value) != str(beyond[0]) for value in beyond):
            return None
        arguments = (2.0**20, self.largest, beyond[0], lowest, self.frac_width)
        return RoundingPlan("minifloat", arguments, infinite=True)

    @property
    def bits(self) -> float:
        return 8

    @property
    def largest(self) -> float:
        return torch.finfo(self.dtype).max

    @property
    def smallest(self) -> float:
        return torch.finfo(self.dtype).smallest_normal * 2.0**-self.frac_width

    def values(self) -> Tensor:
        codes = torch.arange(256, dtype=torch.uint8).view(self.dtype).to(torch.float64)
        finite: Tensor = codes[codes.isfinite()].unique()
        return finite
