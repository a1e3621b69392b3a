"""The place of the largest code."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.integers.codes import Codes
from chop.integers.op import IntegerOp
from chop.integers.scale import Scale


@dataclass(frozen=True, eq=False)
class ArgMaxCodes(IntegerOp):
    """The first place of the largest code along a dimension, which counts the batch."""

    dim: int
    keepdim: bool = False

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        size = x.shape[self.dim]
        places = torch.arange(size, device=x.device).view(-1, *[1] * (x.ndim - 1 - self.dim))
        largest = x == x.amax(self.dim, keepdim=True)
        return torch.where(largest, places, size).amin(self.dim, keepdim=self.keepdim)

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        shape = tuple(self.run(x.bounds()[0]).shape[1:])
        last = torch.tensor(x.shape[self.dim - 1] - 1)
        return Codes.reaching(shape, torch.zeros_like(last), last, Scale.power(0))
