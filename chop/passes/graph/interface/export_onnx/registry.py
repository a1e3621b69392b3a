"""One function per op: which ONNX nodes it becomes."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from chop.ir.ops import OPS
from chop.registry import Registry

__all__ = ["WRITERS", "WriteOp", "writer_of", "writes"]

# takes the call of an op, adds nodes, and returns the name of the result, a tuple of names, or a
# plain value
WriteOp = Callable[[Any], Any]

# decorates the function of one or more ops of the table
WRITERS: Registry[WriteOp] = Registry("op of ONNX files", f"{__package__}.ops", room="float_onnx")
writes = WRITERS.register


def writer_of(op: str) -> WriteOp | None:
    """Return the function that writes an op: its own, or that of ops which are one operator."""
    is_operator = op in OPS and OPS[op].onnx is not None
    found = WRITERS.own().get(op) or WRITERS.quoted(op)
    return found or (one_operator if is_operator else WRITERS.get(op))


def one_operator(call: Any) -> str:
    """Write the operator that is named in the row of the op, with its attributes."""
    row, attributes = OPS[call.op], {}
    assert row.onnx is not None
    for attribute, setting in row.onnx.settings:
        options = list(signature(row.modules[0]).parameters.values())
        place = next(i for i, option in enumerate(options) if option.name == setting)
        value = call.setting(setting, place + 1, options[place].default)
        attributes[attribute] = value if isinstance(value, str) else float(value)
    x = call.cast(call.x(), call.given_facts().dtype, call.out.dtype)
    result: str = call.add(row.onnx.name, x, **attributes)
    return result
