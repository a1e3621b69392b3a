"""The component of the streaming backend for each op, and the files of its module."""

from __future__ import annotations

from chop.hardware.streaming import COMPONENTS
from chop.hardware.streaming.emit import module_library
from chop.hardware.streaming.modules import needed_modules
from chop.integers import (
    AddCodes,
    ArgMaxCodes,
    AvgPoolCodes,
    ChannelAffine,
    ClampCodes,
    ConvCodes,
    IntegerOp,
    LeakyReluCodes,
    LinearCodes,
    Lookup,
    MaxPoolCodes,
    MultiplyCodes,
    ReluCodes,
    SubtractCodes,
)
from chop.ir.ops import OPS, has_trait

RANKS = ("1d", "2d", "3d")
# the integer op that a node of each op becomes; an activation is a table unless it is here
MEANING: dict[str, type[IntegerOp]] = {
    **{name: Lookup for name in OPS if has_trait(name, "activation")},
    **dict.fromkeys(("linear", "transposed_linear"), LinearCodes),
    **{f"conv{rank}": ConvCodes for rank in RANKS},
    **dict.fromkeys(("batch_norm", *(f"batch_norm{rank}" for rank in RANKS)), ChannelAffine),
    "relu": ReluCodes,
    **dict.fromkeys(("relu6", "hardtanh", "clamp"), ClampCodes),
    "leaky_relu": LeakyReluCodes,
    **{f"{how}max_pool{rank}": MaxPoolCodes for how in ("", "adaptive_") for rank in RANKS},
    **{f"{how}avg_pool{rank}": AvgPoolCodes for how in ("", "adaptive_") for rank in RANKS},
    **dict.fromkeys(("mean", "sum"), AvgPoolCodes),
    "add": AddCodes,
    "sub": SubtractCodes,
    "mul": MultiplyCodes,
    "argmax": ArgMaxCodes,
}


def component_of(op: str) -> tuple[str, list[str]] | None:
    """Return the module of an op and the files that it needs; None if it has no component.

    The component may still refuse a node for its shapes or formats, when a circuit is made.
    """
    meaning = MEANING.get(op)
    module = COMPONENTS[meaning].module if meaning else ""
    if not module:
        return None
    return module, [f"{name}.sv" for name in needed_modules([module], module_library())]
