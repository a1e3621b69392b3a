"""Fixed point: an integer of `width` bits, `frac_width` of them after the binary point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from chop.numerics.base import NumberFormat
from chop.numerics.exponents import LAYOUTS, whole_at_most
from chop.numerics.fast.plans import RoundingPlan
from chop.numerics.scratch import scratch


@dataclass(frozen=True)
class Integer(NumberFormat, name="integer", suffix="Integer", aliases=("fixed",)):
    """Two's complement; rounds to nearest, ties to even (or down, with `floor`), and saturates.

    `frac_width` may be negative or above `width`; it defaults to half of `width`.
    """

    light: ClassVar[bool] = True

    width: int
    frac_width: int
    signed: bool = True
    floor: bool = False
    _edges: ClassVar[dict[torch.dtype, tuple[float, float]]]  # per instance, never a field

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 1, 64)
        self.fill_in("frac_width", self.width // 2)
        self.require_whole("frac_width", -120, 120)
        self.require_flags("signed", "floor")
        edges = {dtype: self._codes_in(dtype) for dtype in LAYOUTS}
        object.__setattr__(self, "_edges", edges)

    def for_operand(self, operand: str, *, non_negative: bool = False) -> Self:
        return replace(self, signed=False) if non_negative else self

    @property
    def codes(self) -> tuple[int, int]:
        """The smallest and the largest integer."""
        low = -(2 ** (self.width - 1)) if self.signed else 0
        return low, low + 2**self.width - 1

    def _codes_in(self, dtype: torch.dtype) -> tuple[float, float]:
        """The codes with values that `dtype` can hold."""
        highest = 2 ** (LAYOUTS[dtype].bias + 1) - 1
        shift = self.frac_width
        edge = highest << shift if shift >= 0 else highest >> -shift
        low, high = self.codes
        return whole_at_most(max(low, -edge), dtype), whole_at_most(min(high, edge), dtype)

    def round(self, x: Tensor) -> Tensor:
        scale = 2.0**self.frac_width
        whole = x * scale
        out = scratch(whole)
        if self.floor:
            whole = torch.floor(whole, out=out)
            # a small negative number may have become zero
            whole = torch.sub(whole, (whole / scale > x).to(x.dtype), out=out)
        else:
            whole = torch.round(whole, out=out)
        low, high = self._edges[x.dtype]
        whole = torch.clamp(whole, low, high, out=out)
        return torch.div(whole, scale, out=out)

    def plan(self, device: torch.device) -> RoundingPlan:
        low, high = self._edges[torch.float32]
        rule = "integer_floor" if self.floor else "integer"
        return RoundingPlan(rule, (2.0**self.frac_width, low, high, 2.0**-self.frac_width))

    @property
    def bits(self) -> float:
        return self.width

    @property
    def largest(self) -> float:
        return self.codes[1] * 2.0**-self.frac_width

    @property
    def smallest(self) -> float:
        return 2.0**-self.frac_width

    @property
    def range(self) -> tuple[float, float]:
        return self.codes[0] * 2.0**-self.frac_width, self.largest

    def grid(self) -> Tensor:
        low, high = self.codes
        return torch.arange(low, high + 1, dtype=torch.float64) * 2.0**-self.frac_width
