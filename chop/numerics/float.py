"""The numbers that torch computes with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.numerics.base import NumberFormat

DTYPES = {16: torch.float16, 32: torch.float32, 64: torch.float64}


@dataclass(frozen=True)
class Float(NumberFormat, name="float", suffix="Float"):
    """A tensor left as it is; `width` says how many bits an element takes."""

    width: int

    def round(self, x: Tensor) -> Tensor:
        return x

    def quantize(self, x: Tensor) -> Tensor:
        return x

    @property
    def bits(self) -> float:
        return self.width

    @property
    def largest(self) -> float:
        return torch.finfo(DTYPES.get(self.width, torch.float32)).max

    @property
    def smallest(self) -> float:
        return torch.finfo(DTYPES.get(self.width, torch.float32)).smallest_normal
