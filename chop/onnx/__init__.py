"""ONNX files: networks for other runtimes and tools.

Its names are imported when they are used, as the command line reads `targets` without numpy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chop.onnx.builder import ModelBuilder
    from chop.onnx.files import save_model

__all__ = ["ModelBuilder", "save_model"]

HOMES = {"ModelBuilder": "chop.onnx.builder", "save_model": "chop.onnx.files"}


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(importlib.import_module(HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
