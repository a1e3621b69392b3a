"""One function per integer op: how it is written as ONNX nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from chop.integers import Codes
from chop.onnx.integers.writer import Writer, WrittenValue
from chop.registry import ByClass

__all__ = ["WRITERS", "WriteOp", "writes"]


class WriteOp(Protocol):
    """Write one op as ONNX nodes and return its result.

    `codes` describes the inputs, then the result. The result must equal that of `op.run` for all
    inputs within their bounds.
    """

    def __call__(
        self, w: Writer, op: Any, inputs: Sequence[WrittenValue], codes: Sequence[Codes], /
    ) -> WrittenValue: ...


# decorates the function of one or more op classes and their subclasses
WRITERS: ByClass[WriteOp] = ByClass(
    "function for ONNX files", "chop.onnx.integers.ops", room="onnx"
)
writes = WRITERS.register
