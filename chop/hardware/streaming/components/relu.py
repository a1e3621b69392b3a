"""max(code, 0)."""

from __future__ import annotations

from chop.hardware.streaming.component import Pointwise, component
from chop.integers import ReluCodes


@component(ReluCodes)
class ReluComponent(Pointwise):
    """A comparison with zero per lane."""

    module = "fixed_relu"
