"""Differences of two values."""

from __future__ import annotations

from dataclasses import dataclass

from chop.integers.builders import Builder, Value
from chop.integers.op import ArithmeticOp


@dataclass(frozen=True, eq=False)
class SubtractCodes(ArithmeticOp):
    """a - b, for codes of one scale."""

    wide = "a difference"

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        return b.subtract(*inputs)

    @property
    def label(self) -> str:
        return "Sub"
