"""The same values on a finer grid."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from chop.integers.builders import Builder, Value
from chop.integers.codes import Codes
from chop.integers.op import ComposedOp
from chop.integers.scale import Scale


@dataclass(frozen=True, eq=False)
class Refine(ComposedOp):
    """code · factor in steps that are smaller by the factor: the same values on a finer grid."""

    factor: Tensor
    wide = "a value on a finer grid"

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        (x,) = inputs
        return b.multiply(x, self.factor)

    def result_scale(self, *codes: Codes) -> Scale:
        return codes[0].scale.divided(self.factor)
