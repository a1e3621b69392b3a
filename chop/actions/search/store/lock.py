"""Locks that keep two processes from writing one study, and that end with their process."""

from __future__ import annotations

import os
from contextlib import ExitStack
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


def lock_file(path: Path, held: ExitStack) -> bool:
    """Whether this process now has the lock of a file, which `held` removes and unlocks."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        if not lock_descriptor(descriptor):
            os.close(descriptor)
            return False
        if is_at(path, descriptor):
            held.callback(os.close, descriptor)
            held.callback(path.unlink, missing_ok=True)
            return True
        os.close(descriptor)  # the previous owner removed it in the meantime
