"""One-bit formats: plus and minus one, or on and off."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from chop.numerics.base import NumberFormat
from chop.numerics.fast.plans import RoundingPlan
from chop.numerics.grid import FixedScales
from chop.numerics.means import mean_magnitude


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1, or NaN."""
    return torch.where(x.isnan(), x, x.sign())


def residual_signs(
    x: Tensor, means: Iterable[Any], binarize: Callable[[Tensor], Tensor] = sign
) -> list[Tensor]:
    """Binarise the remainder of the previous levels in each level; each sign is times its mean."""
    levels: list[Tensor] = []
    remainder = x
    for mean in means:
        levels.append(binarize(remainder) * abs(mean))
        remainder = remainder - levels[-1]
    return levels


def scale_bits(shape: Sequence[int]) -> float:
    """Bits per element of one float32 scale per entry of the first dimension."""
    scales = shape[0] if len(shape) > 1 else 1
    return 32 * scales / max(1, math.prod(shape))


@dataclass(frozen=True)
class Binary(NumberFormat, name="binary", suffix="Binary"):
    """`bipolar`: +1 for x >= 0, else -1. Otherwise the mean magnitude or 0.

    `stochastic` draws the sign with probability (x+1)/2 from torch's generator, which
    torch.manual_seed seeds; `scaled` multiplies a bipolar value by the mean magnitude, one float
    per output channel or sample, which `bits` does not count.
    """

    elementwise: ClassVar[bool] = False

    width: int
    stochastic: bool
    bipolar: bool
    scaled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 1, 64)
        self.require_flags("stochastic", "bipolar", "scaled")

    def round(self, x: Tensor) -> Tensor:
        if self.stochastic:
            on = ((x + 1) / 2).clamp(0, 1) > torch.rand_like(x)
        else:
            on = x >= 0 if self.bipolar else x > 0
        scale = mean_magnitude(x) if self.scaled or not self.bipolar else torch.ones_like(x)
        off = -scale if self.bipolar else torch.zeros_like(scale)
        return torch.where(x.isnan(), x, torch.where(on, scale, off))

    def with_scales_of(self, x: Tensor) -> FixedScales:
        def nearest(x: Tensor, scale: Tensor) -> Tensor:
            if self.bipolar:
                return torch.where(x >= 0, scale, -scale)
            return scale * (x > scale / 2)

        scaled = self.scaled or not self.bipolar
        scale = mean_magnitude(x) if scaled else torch.ones_like(x)
        return FixedScales(nearest, (scale.expand_as(x),))

    @property
    def deterministic(self) -> bool:
        return not self.stochastic

    @property
    def only_signs(self) -> bool:
        return bool(self.bipolar and not self.scaled)

    def plan(self, device: torch.device) -> RoundingPlan | None:
        if self.stochastic:
            return None
        if self.only_signs:
            return RoundingPlan("bipolar", ())
        return RoundingPlan("on_off", (1.0, True, False, self.bipolar), rows=True)

    @property
    def bits(self) -> float:
        return 1

    def average_bits(self, shape: Sequence[int]) -> float:
        return self.bits + (0.0 if self.only_signs else scale_bits(shape))

    @property
    def largest(self) -> float:
        return 1.0 if self.only_signs else math.inf

    @property
    def smallest(self) -> float:
        return 1.0 if self.only_signs else 0.0


@dataclass(frozen=True)
class BinaryResidual(NumberFormat, name="binary_residual", suffix="BinaryResidualSign"):
    """A sum of signs: each level binarises the remainder of the previous ones, times its mean.

    A remainder of zero adds nothing, so zero stays zero. Otherwise the result is one of the
    2^levels sums, not necessarily the nearest. `residual_sign = False`, for the first layer of a
    network, leaves the operand unchanged. Signs are bipolar and deterministic; `stochastic` and
    `bipolar` exist only because configs contain them.
    """

    other_keys: ClassVar[tuple[str, ...]] = ("frac_width",)
    layer_attributes: ClassVar[tuple[str, ...]] = ("levels", "means", "gamma")
    gamma: ClassVar[float] = 1.0  # the scale of the sum; neither it nor the means are trained

    width: int
    stochastic: bool
    bipolar: bool
    levels: int = 2
    residual_sign: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 1, 64)
        self.require_flags("stochastic", "bipolar", "residual_sign")
        law = "residual signs are bipolar and deterministic: give stochastic = 0 and bipolar = 1"
        self.require(bool(self.bipolar and not self.stochastic), law)
        self.require_whole("levels", 1, 3)

    @property
    def means(self) -> list[float]:
        """Two thirds and one third for two levels: decreasing, with sum 1."""
        total = self.levels * (self.levels + 1) / 2
        return [(self.levels - i) / total for i in range(self.levels)]

    def round(self, x: Tensor) -> Tensor:
        if not self.residual_sign:
            return x
        # in units of the smallest mean, so that all sums are exact integers
        parts = range(self.levels, 0, -1)
        total = sum(parts)
        return torch.stack(residual_signs(x * total, parts)).sum(0) / total

    def plan(self, device: torch.device) -> RoundingPlan | None:
        if not self.residual_sign:
            return None
        return RoundingPlan("residual", (self.levels, self.levels * (self.levels + 1) / 2))

    @property
    def bits(self) -> float:
        return self.levels if self.residual_sign else 32

    @property
    def largest(self) -> float:
        return 1.0

    @property
    def smallest(self) -> float:
        grid = self.values()
        return grid[grid > 0].min().item()

    def values(self) -> Tensor:
        """All sums of signs, and zero."""
        sums = {0.0}
        for mean in self.means:
            sums = {total + sign * mean for total in sums for sign in (-1, 1)}
        return torch.tensor(sorted(sums | {0.0}), dtype=torch.float64)
