"""Codes in another order of dimensions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from chop.integers.op import MovingOp


@dataclass(frozen=True, eq=False)
class PermuteCodes(MovingOp):
    """Another order of dimensions; the batch stays the first."""

    dims: tuple[int, ...]

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return x.permute(self.dims)
