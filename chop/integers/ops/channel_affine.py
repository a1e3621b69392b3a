"""Batch norms on codes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from chop.integers.builders import Builder, Value
from chop.integers.codes import Codes
from chop.integers.op import ComposedOp
from chop.integers.scale import Scale


@dataclass(frozen=True, eq=False)
class ChannelAffine(ComposedOp):
    """multiplier · code + offset, one pair per channel: a batch norm that is not folded."""

    multiplier: Tensor
    offset: Tensor
    scale: Scale
    wide = "an accumulator"

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        (x,) = inputs
        return b.affine(x, b.by_channel(self.multiplier), b.by_channel(self.offset))

    def result_scale(self, *codes: Codes) -> Scale:
        return self.scale

    def exact_in_float(self, *codes: Codes) -> bool:
        return False

    @property
    def label(self) -> str:
        return "Affine"
