"""The mean of each window."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.integers.codes import Codes, check_bits
from chop.integers.op import IntegerOp
from chop.integers.rounding import SINGLE, exact_sums


@dataclass(frozen=True, eq=False)
class AvgPoolCodes(IntegerOp):
    """The sum of each window; the scale is divided by the number of its elements."""

    accumulates = True

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    ceil: bool = False
    count_padding: bool = True
    divisor: int | None = None
    reach: int = 0

    def fitted(self, *codes: Codes) -> AvgPoolCodes:
        reach = codes[0].largest * math.prod(self.kernel)
        check_bits(reach, "an accumulator")
        return replace(self, reach=reach)

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return exact_sums(self._sums, x, self.reach, math.prod(self.kernel))

    def _sums(self, x: Tensor) -> Tensor:
        return self._pooled(x, 1)

    def _pooled(self, x: Tensor, divisor: int | None) -> Tensor:
        rank = len(self.kernel)
        settings = (self.kernel, self.stride, self.padding)
        if rank == 1:  # which has no divisor of ours
            settings = ((1, *self.kernel), (1, *self.stride), (0, *self.padding))
            x = x.unsqueeze(-2)
        pool: Any = F.avg_pool3d if rank == 3 else F.avg_pool2d
        result: Tensor = pool(x, *settings, self.ceil, self.count_padding, divisor)
        return result.squeeze(-2) if rank == 1 else result

    def counts(self, shape: tuple[int, ...]) -> Tensor:
        """Return the number that the sum at each place is divided by."""
        if self.divisor is not None:
            return torch.tensor(self.divisor)
        ones = torch.ones(1, 1, *shape[1:], dtype=torch.float64)
        return (self._pooled(ones, 1) / self._pooled(ones, None)).round().long()[0]

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        low, high = (self.run(bound)[0] for bound in x.bounds())
        scale = x.scale.by_channel(x.shape)
        if scale is None:
            raise ValueError("the elements of a window have different scales")
        return Codes.reaching(tuple(low.shape), low, high, scale.divided(self.counts(x.shape)))

    def exact_in_float(self, *codes: Codes) -> bool:
        (x,) = codes
        return self.reach < SINGLE and x.scale.divided(self.counts(x.shape)).power_of_two
