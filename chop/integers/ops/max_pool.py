"""The largest code of each window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.integers.codes import Codes
from chop.integers.op import IntegerOp
from chop.integers.rounding import DOUBLE, SINGLE

MAX_POOLS: dict[int, Any] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


@dataclass(frozen=True, eq=False)
class MaxPoolCodes(IntegerOp):
    """The largest code of each window; padding never wins."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil: bool = False
    reach: int = DOUBLE

    def fitted(self, *codes: Codes) -> MaxPoolCodes:
        return replace(self, reach=codes[0].largest)

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        if self.reach < DOUBLE:
            dtype = torch.float32 if self.reach < SINGLE else torch.float64
            return self._pooled(x.to(dtype)).long()
        values: Tensor
        values, ranks = torch.unique(x, return_inverse=True)
        # ranks fit into a float
        return values[self._pooled(ranks.double()).long()]

    def _pooled(self, x: Tensor) -> Tensor:
        settings = (self.kernel, self.stride, self.padding, self.dilation, self.ceil)
        result: Tensor = MAX_POOLS[len(self.kernel)](x, *settings)
        return result

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        low, high = (self.run(bound)[0] for bound in x.bounds())
        scale = x.scale.by_channel(x.shape)
        if scale is None:
            raise ValueError("the elements of a window have different scales")
        return replace(x, scale=scale).within(low, high, shape=tuple(low.shape))
