"""Locks that keep two processes from writing one study, and that end with their process."""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where nothing keeps two processes apart
    fcntl = None  # type: ignore[assignment]


def lock_descriptor(descriptor: int, *, shared: bool = False) -> bool:
    """Whether this process now has a lock on an open file, the only one unless it is `shared`."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_at(path: Path, descriptor: int) -> bool:
    """Whether a path still names the file that is open."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


class LockFile:
    """A file beside a database that exists while a process has its lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Whether this process now has the lock."""
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            if not lock_descriptor(descriptor):
                os.close(descriptor)
                return False
            if is_at(self._path, descriptor):
                self._descriptor = descriptor
                return True
            os.close(descriptor)  # the previous owner removed it in the meantime

    def release(self) -> None:
        """Remove the file and give the lock back."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None
