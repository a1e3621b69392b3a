"""One function per integer op: how it is written as ONNX nodes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

from chop.integers import Codes, IntegerOp
from chop.onnx.integers.writer import Writer, WrittenValue

__all__ = ["WriteOp", "write_function", "writes"]


class WriteOp(Protocol):
    """Write one op as ONNX nodes and return its result.

    `codes` describes the inputs, then the result. The result must equal that of `op.run` for all
    inputs within their bounds.
    """

    def __call__(
        self, w: Writer, op: Any, inputs: Sequence[WrittenValue], codes: Sequence[Codes], /
    ) -> WrittenValue: ...


_known: dict[type[IntegerOp], WriteOp] = {}


def writes(*ops: Any) -> Callable[[WriteOp], WriteOp]:
    """Decorator that registers the function of one or more op classes and their subclasses."""

    def add(function: WriteOp) -> WriteOp:
        for op in ops:
            if op in _known:
                raise ValueError(f"{op.__name__} has two functions for ONNX files; keep one")
            _known[op] = function
        return function

    return add


def write_function(op: IntegerOp) -> WriteOp | None:
    """Return the function of an op, or of the nearest class that it inherits from."""
    _load()
    return next((_known[c] for c in type(op).__mro__ if c in _known), None)


@cache
def _load() -> None:
    """Import the files of chop/onnx/integers/ops, which register their functions."""
    package = importlib.import_module("chop.onnx.integers.ops")
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
