"""One bit: plus or minus, or on and off."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chop.numerics.base import NumberFormat


def mean_magnitude(x: Tensor) -> Tensor:
    """Mean of |x| for each entry of the first dimension: an output channel, or a sample."""
    if x.ndim < 2:
        return x.abs().mean()
    return x.abs().mean(dim=tuple(range(1, x.ndim)), keepdim=True)


@dataclass(frozen=True)
class Binary(NumberFormat, name="binary", suffix="Binary"):
    """`bipolar`: +1 from zero up, else -1. Otherwise: on, at the mean magnitude, or 0.

    `stochastic` draws the sign with probability (x+1)/2 from torch's generator, so that
    torch.manual_seed decides; `scaled` multiplies a bipolar value by the mean magnitude.
    """

    elementwise: ClassVar[bool] = False

    width: int
    stochastic: bool
    bipolar: bool
    scaled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 1, 64)
        for key in ("stochastic", "bipolar"):
            self.require(getattr(self, key) in (0, 1), f"{key} is 0 or 1")

    def round(self, x: Tensor) -> Tensor:
        if self.stochastic:
            on = ((x + 1) / 2).clamp(0, 1) > torch.rand_like(x)
        else:
            on = x >= 0 if self.bipolar else x > 0
        scale = mean_magnitude(x) if self.scaled or not self.bipolar else torch.ones_like(x)
        off = -scale if self.bipolar else torch.zeros_like(scale)
        return torch.where(x.isnan(), x, torch.where(on, scale, off))

    @property
    def bits(self) -> float:
        return 1

    @property
    def largest(self) -> float:
        return 1.0 if self.bipolar and not self.scaled else math.inf

    @property
    def smallest(self) -> float:
        return 1.0 if self.bipolar and not self.scaled else 0.0


@dataclass(frozen=True)
class BinaryResidual(NumberFormat, name="binary_residual", suffix="BinaryResidual"):
    """A sum of signs: each level binarises what the levels before it left, times its mean."""

    elementwise: ClassVar[bool] = True

    width: int
    stochastic: bool
    bipolar: bool
    levels: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 1, 64)
        self.require_whole("levels", 1, 16)

    @property
    def means(self) -> list[float]:
        """Two thirds and one third for two levels: falling, with the sum one."""
        total = self.levels * (self.levels + 1) / 2
        return [(self.levels - i) / total for i in range(self.levels)]

    def parts(self, x: Tensor) -> list[Tensor]:
        """What each level adds."""
        found, rest = [], x
        for mean in self.means:
            found.append(rest.sign() * mean)
            rest = rest - found[-1]
        return found

    def round(self, x: Tensor) -> Tensor:
        return torch.stack(self.parts(x)).sum(0)

    @property
    def bits(self) -> float:
        return self.levels

    @property
    def largest(self) -> float:
        return 1.0

    @property
    def smallest(self) -> float:
        grid = self.grid()
        return grid[grid > 0].min().item()

    @property
    def range(self) -> tuple[float, float]:
        return -1.0, 1.0

    def grid(self) -> Tensor:
        values = torch.zeros(1, dtype=torch.float64)
        for mean in self.means:
            values = torch.cat([values - mean, values + mean])
        unique: Tensor = torch.cat([values, torch.zeros(1, dtype=torch.float64)]).unique()
        return unique
