"""Progress bars of passes, which a run can hide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

__all__ = ["hidden_progress", "progress_bar"]

_hidden = 0  # how many blocks hide them, in all threads


def progress_bar(
    iterable: Iterable[Any] | None = None, *, disable: bool = False, **options: Any
) -> tqdm[Any]:
    """Return a bar of tqdm, unless bars are hidden."""
    return tqdm(iterable, disable=disable or _hidden > 0, **options)


@contextmanager
def hidden_progress(hide: bool = True) -> Iterator[None]:
    """Hide the bars that are made in the block."""
    global _hidden
    _hidden += hide
    try:
        yield
    finally:
        _hidden -= hide
