"""Codes with others around them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.integers.codes import Codes
from chop.integers.op import MovingOp


@dataclass(frozen=True, eq=False)
class PadCodes(MovingOp):
    """Padding with a constant code, or by reflection, repetition or wrapping around."""

    pads: tuple[int, ...]
    mode: str = "constant"
    code: int = 0

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        if self.mode == "constant":
            return F.pad(x, self.pads, value=self.code)
        # of positions instead of codes, which float could not hold
        shape = x.shape[x.ndim - len(self.pads) // 2 :]
        places = torch.arange(math.prod(shape), dtype=torch.float64, device=x.device)
        moved = F.pad(places.view(1, 1, *shape), self.pads, self.mode).long()
        flat = x.flatten(x.ndim - len(shape))
        return flat[..., moved.flatten()].view(*flat.shape[:-1], *moved.shape[2:])

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        low, high = (self.run(bound)[0] for bound in x.bounds())
        padded = len(self.pads) // 2
        sizes = (n for part in x.scale.parts for n in part.shape[max(0, part.ndim - padded) :])
        if any(n > 1 for n in sizes):
            raise ValueError("its padding has no scale; use one scale for the whole tensor")
        return x.within(low, high, shape=tuple(low.shape))

    @property
    def label(self) -> str:
        return f"Pad {self.mode}"
