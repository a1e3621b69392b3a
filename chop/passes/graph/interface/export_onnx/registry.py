"""One function per op: which ONNX nodes it becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chop.registry import Registry

__all__ = ["WRITERS", "WriteOp", "writes"]

# takes the call of an op, adds nodes, and returns the name of the result, a tuple of names, or a
# plain value
WriteOp = Callable[[Any], Any]

# decorates the function of one or more ops of the table
WRITERS: Registry[WriteOp] = Registry("op of ONNX files", f"{__package__}.ops")
writes = WRITERS.register
