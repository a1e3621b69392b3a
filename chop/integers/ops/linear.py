"""Linear layers on codes."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from chop.integers.ops.weighted import WeightedOp


@dataclass(frozen=True, eq=False)
class LinearCodes(WeightedOp):
    """x W' + b over the last dimension."""

    def products(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight, bias)

    @property
    def rank(self) -> int:
        return 0

    @property
    def label(self) -> str:
        return f"Linear w{self.weight_width}"
