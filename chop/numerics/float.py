"""The numbers that torch computes with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chop.numerics.base import NumberFormat

DTYPES = {16: torch.float16, 32: torch.float32, 64: torch.float64}


@dataclass(frozen=True)
class Float(NumberFormat, name="float", suffix="Float"):
    """The float tensor unchanged, including NaN and infinities; `width` is the bits per element.

    Range and smallest value are those of IEEE half, single and double; other widths use single.
    """

    rounds: ClassVar[bool] = False

    width: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 1, 128)

    def round(self, x: Tensor) -> Tensor:
        return x

    def quantize(self, x: Tensor) -> Tensor:
        return x

    @property
    def bits(self) -> float:
        return self.width

    @property
    def info(self) -> torch.finfo:
        return torch.finfo(DTYPES.get(self.width, torch.float32))

    @property
    def largest(self) -> float:
        return self.info.max

    @property
    def smallest(self) -> float:
        return self.info.smallest_normal * self.info.eps
