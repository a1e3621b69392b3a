"""Caches: results on disk, which processes share, and the latest results of one process."""

from __future__ import annotations

import contextlib
import shutil
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, TypeVar

from chop.files import locked_file

K = TypeVar("K")
V = TypeVar("V")


class Lru(Generic[K, V]):
    """The results that were used last, up to a number of them (or another sum of weights)."""

    def __init__(self, limit: int) -> None:
        self.limit, self._used = limit, 0
        self._results: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: K) -> V | None:
        """Return a result, or None."""
        if key not in self._results:
            return None
        self._results.move_to_end(key)
        return self._results[key]

    def put(self, key: K, value: V) -> V:
        """Keep a result, in place of those that were used least lately."""
        if key in self._results:
            self._used -= self._weight(self._results.pop(key))
        self._results[key] = value
        self._used += self._weight(value)
        while self._used > self.limit and len(self._results) > 1:
            self._used -= self._weight(self._results.popitem(last=False)[1])
        return value

    def get_or(self, key: K, make: Callable[..., V], *args: Any) -> V:
        """Return a result, that of `make(*args)` if there is none."""
        known = self.get(key)
        return self.put(key, make(*args)) if known is None else known

    def clear(self) -> None:
        self._results.clear()
        self._used = 0

    def _weight(self, value: V) -> int:
        return 1


def cached(
    file: Path,
    read: Callable[[], V | None],
    make: Callable[[], V],
    locked: Callable[[Path], AbstractContextManager[None]] = locked_file,
) -> V:
    """Return what `read` finds in a file, else what `make` writes there, one process at a time."""
    known = read()
    if known is None:
        with locked(file):
            known = read()  # another process was faster
            return make() if known is None else known
    return known


def forget_oldest(folder: Path, pattern: str, kept: int) -> None:
    """Delete all files or directories but those used last."""
    used_at = {path: used for path in folder.glob(pattern) if (used := _used_at(path)) is not None}
    for old in sorted(used_at, key=used_at.__getitem__, reverse=True)[kept:]:
        if _used_at(old) != used_at[old]:  # another process has used or deleted it meanwhile
            continue
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink(missing_ok=True)


def _used_at(path: Path) -> float | None:
    with contextlib.suppress(FileNotFoundError):  # another process has deleted it
        return path.stat().st_mtime
    return None
