"""The signs of a code and of what is left of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.integers.codes import Codes
from chop.integers.op import IntegerOp
from chop.integers.rounding import SINGLE
from chop.integers.scale import Scale


@dataclass(frozen=True, eq=False)
class ResidualSigns(IntegerOp):
    """The signs of a value and of what is left after each level, 1 for +: a bit per level.

    The levels together are an integer, the first in the highest bit, which counts how many of
    the `thresholds` a code reaches; the levels are the first dimension of the result.
    """

    on_grid = True

    thresholds: Tensor  # [2^levels - 1], never falling
    exact: bool = True  # whether float32 finds the same thresholds

    @property
    def levels(self) -> int:
        return len(self.thresholds).bit_length()

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        thresholds = self.thresholds.to(x.device)
        reached = torch.bucketize(x.contiguous(), thresholds, right=True)
        levels = range(self.levels - 1, -1, -1)
        return torch.stack([(reached >> level) & 1 for level in levels], 1)

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        low, high = (self.run(bound)[0] for bound in x.bounds())
        # a level falls where the one above it rises
        same = torch.cumprod((low == high).long(), 0).bool()
        low, high = torch.where(same, low, 0), torch.where(same, high, 1)
        return Codes.reaching(tuple(low.shape), low, high, Scale.power(0))

    def exact_in_float(self, *codes: Codes) -> bool:
        (x,) = codes
        return self.exact and x.scale.power_of_two and x.largest <= SINGLE

    @property
    def label(self) -> str:
        return f"Signs {self.levels}"
