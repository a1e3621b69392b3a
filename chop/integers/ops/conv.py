"""Convolutions on codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from chop.integers.ops.weighted import WeightedOp
from chop.integers.rounding import exact_kernels

CONVOLUTIONS: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True, eq=False, kw_only=True)
class ConvCodes(WeightedOp):
    """A convolution of one to three dimensions, padded with zeros."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    def products(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        settings = (self.stride, self.padding, self.dilation, self.groups)
        with exact_kernels():
            result: Tensor = CONVOLUTIONS[self.rank](x, weight, bias, *settings)
        return result

    @property
    def rank(self) -> int:
        return self.weight.ndim - 2

    @property
    def label(self) -> str:
        return f"Conv{self.rank}d w{self.weight_width}"
