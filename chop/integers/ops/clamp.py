"""Codes within bounds."""

from __future__ import annotations

from dataclasses import dataclass

from chop.integers.builders import Builder, Value
from chop.integers.op import ArithmeticOp, MonotoneOp


@dataclass(frozen=True, eq=False)
class ClampCodes(MonotoneOp, ArithmeticOp):
    """min(max(code, low), high), as relu6 and hardtanh compute."""

    low: int
    high: int

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        (x,) = inputs
        return b.clamp(x, self.low, self.high)
