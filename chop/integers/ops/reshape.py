"""Codes in another shape."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from chop.integers.op import MovingOp


@dataclass(frozen=True, eq=False)
class ReshapeCodes(MovingOp):
    """Another shape, without the batch."""

    shape: tuple[int, ...]

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return x.reshape(x.shape[0], *self.shape)
