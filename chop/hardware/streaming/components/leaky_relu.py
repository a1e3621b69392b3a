"""Codes times one number if they are negative, and another if not."""

from __future__ import annotations

from chop.hardware.streaming.component import Long, Pointwise, StreamCost, component
from chop.integers import LeakyReluCodes


@component(LeakyReluCodes)
class LeakyReluComponent(Pointwise):
    """A multiplication with one of two constants per lane."""

    module = "fixed_leaky_relu"

    def parameters(self) -> dict[str, int]:
        op = self.node.op
        assert isinstance(op, LeakyReluCodes)
        slopes = {"POSITIVE": Long(op.denominator), "NEGATIVE": Long(op.numerator)}
        return super().parameters() | slopes

    def cost(self) -> StreamCost:
        return StreamCost(self.input.beats, multipliers=2 * self.input.lanes)
