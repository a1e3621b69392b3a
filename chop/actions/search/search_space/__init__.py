"""Search spaces: which designs there are, and the network of each."""

from __future__ import annotations

import importlib
from typing import Any

_LABS = ("GraphSearchSpaceMixedPrecisionPTQ", "SearchSpaceBase")


def __getattr__(name: str) -> Any:
    """The labs' names, which are made of everything else."""
    if name in _LABS:
        return getattr(importlib.import_module("chop.actions.search.labs"), name)
    if name == "SEARCH_SPACE_MAP":
        return importlib.import_module("chop.actions.search.search_space.registry").SPACES
    if name == "get_search_space_cls":
        return importlib.import_module("chop.actions.search.search_space.registry").space_named
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
