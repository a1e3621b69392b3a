"""The component of the streaming backend for each op, and the files of its module."""

from __future__ import annotations

from chop import integers
from chop.hardware.streaming import COMPONENTS
from chop.hardware.streaming.emit import module_library
from chop.hardware.streaming.modules import needed_modules
from chop.ir.ops import OPS


def component_of(op: str) -> tuple[str, list[str]] | None:
    """Return the module of an op and the files that it needs; None if it has no component.

    The component may still refuse a node for its shapes or formats, when a circuit is made.
    """
    meaning = getattr(integers, OPS[op].integer, None) if op in OPS else None
    module = COMPONENTS[meaning].module if meaning else ""
    if not module:
        return None
    return module, [f"{name}.sv" for name in needed_modules([module], module_library())]
