"""min(max(code, low), high), as relu6 and hardtanh compute."""

from __future__ import annotations

from chop.hardware.streaming.component import Long, Pointwise, component
from chop.integers import ClampCodes


@component(ClampCodes)
class ClampComponent(Pointwise):
    """Two comparisons per lane."""

    module = "fixed_clamp"

    def parameters(self) -> dict[str, int]:
        op = self.node.op
        assert isinstance(op, ClampCodes)
        return super().parameters() | {"LOW": Long(op.low), "HIGH": Long(op.high)}
