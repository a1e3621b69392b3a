"""The labs' import paths: their classes are made of everything else, so they come late."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def from_labs(module: str, *names: str) -> Callable[[str], Any]:
    """A `__getattr__` for `module`, which finds these names in `chop.actions.search.labs`."""

    def find(name: str) -> Any:
        if name in names:
            return getattr(importlib.import_module("chop.actions.search.labs"), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find
