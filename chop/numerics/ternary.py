"""Three values: minus, zero, plus."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chop.numerics.base import NumberFormat
from chop.numerics.binary import scale_bits
from chop.numerics.fast.plans import RoundingPlan
from chop.numerics.grid import FixedScales
from chop.numerics.means import mean_magnitude


@dataclass(frozen=True)
class Ternary(NumberFormat, name="ternary", suffix="Ternary"):
    """Zero up to a threshold and the sign beyond, times the mean magnitude beyond if scaled.

    The threshold is the first one given of `threshold`, 0.75 `mean`, 0.05 `max` and 0.75
    `median`; without any it is 0.75 of the mean magnitude of each output channel or sample. In a
    graph with profiled statistics, the pass takes `mean`, `median` and `max` from them. The scale
    is one float per channel or sample, which `bits` does not count.
    """

    elementwise: ClassVar[bool] = False
    profiled: ClassVar[Mapping[str, tuple[str, str]]] = {
        "mean": ("abs_mean", "abs_mean"),
        "median": ("range_quantile", "max"),
        "max": ("range_min_max", "max"),
    }

    width: int
    scaling_factor: bool
    mean: float | None
    median: float | None
    max: float | None
    threshold: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 2, 64)
        self.require_flags("scaling_factor")
        for key in ("mean", "median", "max", "threshold"):
            value = getattr(self, key)
            law = value is None or (isinstance(value, int | float) and 0 <= value < math.inf)
            self.require(law, f"{key} must be a number of at least 0, or None")

    @property
    def fixed_border(self) -> float | None:
        """The largest magnitude that becomes zero, or None if it depends on the data."""
        limits = ((self.threshold, 1.0), (self.mean, 0.75), (self.max, 0.05), (self.median, 0.75))
        return next((share * value for value, share in limits if value is not None), None)

    def border(self, x: Tensor) -> Tensor:
        """The largest magnitude that becomes zero."""
        if self.fixed_border is not None:
            return torch.full_like(x, self.fixed_border)
        return 0.75 * mean_magnitude(x)

    def round(self, x: Tensor) -> Tensor:
        beyond = x.abs() > self.border(x)
        ternary = x.sign() * beyond.to(x.dtype)
        if self.scaling_factor:
            ternary = ternary * mean_magnitude(x, beyond)
        return torch.where(x.isnan(), x, ternary)

    def with_scales_of(self, x: Tensor) -> FixedScales:
        def nearest(x: Tensor, scale: Tensor) -> Tensor:
            parts = x / torch.where(scale > 0, scale, 1.0)
            return parts.round().clamp(-1, 1) * scale

        beyond = x.abs() > self.border(x)
        scale = mean_magnitude(x, beyond) if self.scaling_factor else torch.ones_like(x)
        return FixedScales(nearest, (scale.expand_as(x),))

    def plan(self, device: torch.device) -> RoundingPlan:
        border = self.fixed_border
        if border is not None and not self.scaling_factor:
            return RoundingPlan("ternary", (border,))
        share = 0.75 if border is None else border
        return RoundingPlan("row_ternary", (share, border is None, self.scaling_factor), rows=True)

    @property
    def bits(self) -> float:
        return 2

    def average_bits(self, shape: Sequence[int]) -> float:
        return self.bits + (scale_bits(shape) if self.scaling_factor else 0.0)

    @property
    def largest(self) -> float:
        return math.inf if self.scaling_factor else 1.0

    @property
    def smallest(self) -> float:
        return 0.0 if self.scaling_factor else 1.0
