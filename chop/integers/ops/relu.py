"""The larger of a code and zero."""

from __future__ import annotations

from dataclasses import dataclass

from chop.integers.builders import Builder, Value
from chop.integers.op import ComposedOp, MonotoneOp


@dataclass(frozen=True, eq=False)
class ReluCodes(MonotoneOp, ComposedOp):
    """max(code, 0)."""

    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        (x,) = inputs
        return b.max(x, 0)
