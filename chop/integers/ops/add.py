"""Sums of two values."""

from __future__ import annotations

from dataclasses import dataclass

from chop.integers.builders import Builder, Value
from chop.integers.op import ArithmeticOp


@dataclass(frozen=True, eq=False)
class AddCodes(ArithmeticOp):
    """a + b, for codes of one scale."""

    wide = "a sum"

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        return b.add(*inputs)
