"""Ops on several values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from chop.integers.builders import Builder, Value
from chop.integers.codes import Codes
from chop.integers.ops import ComposedOp
from chop.integers.rounding import SINGLE
from chop.integers.scale import Scale


@dataclass(frozen=True, eq=False)
class SumOp(ComposedOp):
    """A sum or a difference of codes of one scale."""

    def exact_in_float(self, *codes: Codes) -> bool:
        powers = all(x.scale.power_of_two for x in codes)
        return powers and sum(x.largest for x in codes) <= SINGLE


@dataclass(frozen=True, eq=False)
class AddCodes(SumOp):
    """a + b, for codes of one scale."""

    wide = "a sum"

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        return b.add(*inputs)


@dataclass(frozen=True, eq=False)
class SubtractCodes(SumOp):
    """a - b, for codes of one scale."""

    wide = "a difference"

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        return b.subtract(*inputs)

    @property
    def label(self) -> str:
        return "Sub"


@dataclass(frozen=True, eq=False)
class MultiplyCodes(ComposedOp):
    """a · b, with the product of both scales."""

    wide = "a product"

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        return b.multiply(*inputs)

    def result_scale(self, *codes: Codes) -> Scale:
        one, other = codes
        return one.scale.times(other.scale)

    def exact_in_float(self, *codes: Codes) -> bool:
        one, other = codes
        powers = one.scale.power_of_two and other.scale.power_of_two
        return powers and one.largest * other.largest <= SINGLE

    @property
    def label(self) -> str:
        return "Mul"


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
