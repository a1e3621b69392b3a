"""Values one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from chop.integers.builders import Builder, Value
from chop.integers.codes import Codes
from chop.integers.op import ComposedOp
from chop.integers.scale import Scale


@dataclass(frozen=True, eq=False)
class ConcatCodes(ComposedOp):
    """Codes one after the other along a dimension, which counts the batch."""

    dim: int

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        return b.concat(inputs, self.dim)

    def result(self, *codes: Codes) -> Codes:
        new, first = super().result(*codes), codes[0]
        words = {(x.zero_point, x.width, x.signed) for x in codes}
        if len(words) > 1 or not first.zero_point or not new.scale.uniform:
            return new
        return replace(new, width=first.width, signed=first.signed, zero_point=first.zero_point)

    def result_scale(self, *codes: Codes) -> Scale:
        parts = (
            torch.cat([x.scale.parts[i].expand(x.shape).unsqueeze(0) for x in codes], self.dim)[0]
            for i in range(3)
        )
        return Scale(*parts)
