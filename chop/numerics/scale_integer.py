"""Integers with a real-valued scale for each row of the last dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from chop.numerics.base import NumberFormat
from chop.numerics.fast.plans import RoundingPlan, reciprocal
from chop.numerics.grid import FixedScales


@dataclass(frozen=True)
class ScaleInteger(NumberFormat, name="scale_integer", suffix="ScaleInteger"):
    """Integers with one 32-bit scale for each row of the last dimension: costly for short rows.

    The largest magnitude of a row fills the range. A positive maximum saturates by one step, unless
    `symmetric` scales to the largest code. `average_bits` counts the scales, `bits` does not: rows
    of n elements have 32 / n bits more per element.
    """

    elementwise: ClassVar[bool] = False
    has_row_codes: ClassVar[bool] = True

    width: int
    signed: bool = True
    symmetric: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 2, 24)
        self.require_flags("signed", "symmetric")

    def for_operand(self, operand: str, *, non_negative: bool = False) -> Self:
        return replace(self, signed=False) if non_negative else self

    @property
    def codes(self) -> tuple[int, int, int]:
        """The code of the largest magnitude, the smallest code, and the largest code."""
        span = 2 ** (self.width - 1) if self.signed else 2**self.width
        full = span - self.symmetric
        return full, -full if self.signed else 0, span - 1

    def layout(self, rank: int) -> tuple[Sequence[int], int]:
        """Each row is a block, as in the block formats."""
        return [1] * (rank - 1) + [-1], 0

    def round(self, x: Tensor) -> Tensor:
        codes, largest = self.coded(x)
        # by a tensor: a GPU divides by a Python number by multiplying with its reciprocal
        rounded: Tensor = codes / torch.full_like(largest, self.codes[0]) * largest
        return rounded

    def coded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the codes, as floats, and the largest magnitude of each row, which they are of.

        A code stands for its share of `codes[0]` of that magnitude.
        """
        full, low, high = self.codes
        finite = torch.finfo(x.dtype).max
        inside = x.clamp(-finite, finite)
        magnitudes = inside.abs().nan_to_num(nan=0.0)
        largest = magnitudes.amax(-1, keepdim=True) if x.ndim and x.shape[-1] else magnitudes
        # relative to the largest, as the scale itself may under- or overflow
        parts = inside / torch.where(largest > 0, largest, 1.0)
        return (parts * full).round().clamp(low, high), largest

    def with_scales_of(self, x: Tensor) -> FixedScales:
        full, low, high = self.codes

        def nearest(x: Tensor, largest: Tensor) -> Tensor:
            parts = x / torch.where(largest > 0, largest, 1.0)
            codes = (parts * full).round().clamp(low, high)
            return codes / torch.full_like(largest, full) * largest

        largest = x.abs().amax(-1, keepdim=True).expand_as(x)
        return FixedScales(nearest, (largest,), x.abs() == largest)

    def plan(self, device: torch.device) -> RoundingPlan:
        full, low, high = self.codes
        return RoundingPlan("scale_integer", (full, low, high, *reciprocal(full)), blocks=True)

    @property
    def bits(self) -> float:
        return self.width

    def average_bits(self, shape: Sequence[int]) -> float:
        return self.bits + 32 / (shape[-1] if shape and shape[-1] else 1)

    @property
    def largest(self) -> float:
        return math.inf

    @property
    def smallest(self) -> float:
        return 0.0
