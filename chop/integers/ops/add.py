"""Sums of two values."""

from __future__ import annotations

from dataclasses import dataclass

from chop.integers.builders import Builder, Value
from chop.integers.codes import Codes
from chop.integers.op import ComposedOp
from chop.integers.rounding import SINGLE


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
