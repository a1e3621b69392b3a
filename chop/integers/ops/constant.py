"""Codes that the network brings along."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from chop.integers.builders import Builder, Value
from chop.integers.codes import Codes
from chop.integers.op import ComposedOp
from chop.integers.scale import Scale


@dataclass(frozen=True, eq=False)
class ConstantCodes(ComposedOp):
    """Codes that are the same for every sample."""

    rounds = True

    value: Tensor
    scale: Scale

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        return b.constant(self.value)

    def result_scale(self, *codes: Codes) -> Scale:
        return self.scale
