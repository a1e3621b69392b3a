"""One function per op: which ONNX nodes it becomes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any

from chop.ir.ops import OPS

__all__ = ["WriteOp", "exported_ops", "op_writer", "writes"]

# takes the call of an op, adds nodes, and returns the name of the result, a tuple of names, or a
# plain value
WriteOp = Callable[[Any], Any]

_known: dict[str, WriteOp] = {}


def writes(*ops: str) -> Callable[[WriteOp], WriteOp]:
    """Decorator that registers the function of one or more ops of the table."""

    def add(function: WriteOp) -> WriteOp:
        for op in ops:
            assert op in OPS, f"{op!r} is not in the table of ops"
            if op in _known:
                raise ValueError(f"{op!r} has two functions for ONNX; keep one")
            _known[op] = function
        return function

    return add


def op_writer(op: str) -> WriteOp | None:
    """Return the function of an op."""
    _load()
    return _known.get(op)


def exported_ops() -> tuple[str, ...]:
    """Return the ops that have a function, in the order of the table."""
    _load()
    return tuple(op for op in OPS if op in _known)


@cache
def _load() -> None:
    """Import the files of `ops`, which register their functions."""
    package = importlib.import_module(f"{__package__}.ops")
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
