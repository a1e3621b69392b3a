"""The packages of the extra `onnx`, imported when they are needed."""

from __future__ import annotations

import importlib.util

from chop.extras import install_command

__all__ = ["MissingPackage", "need_package"]


class MissingPackage(ImportError):
    """A package of an extra is not installed."""


def need_package(name: str, what: str) -> None:
    """Refuse, in one sentence, to go on without a package of the extra `onnx`."""
    if importlib.util.find_spec(name) is None:
        raise MissingPackage(f"{what} needs {name}; install it with: {install_command('onnx')}")
