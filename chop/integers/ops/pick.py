"""Some codes of a sample."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from chop.integers.op import MovingOp


@dataclass(frozen=True, eq=False)
class PickCodes(MovingOp):
    """The codes at some places of a sample, any number of times each.

    `places` has the shape of a result without the batch, and counts the codes row by row.
    """

    places: Tensor

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return x.flatten(1)[:, self.places.flatten()].view(x.shape[0], *self.places.shape)
