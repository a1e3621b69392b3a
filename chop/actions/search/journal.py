"""The journal of a study: lines that survive whoever writes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.storages import JournalStorage


try:
    import fcntl
except ImportError:  # Windows, where Optuna's own lock has to do
    fcntl = None  # type: ignore[assignment]


START = b'{"op_code":'  # of every line


class Lock:
    """The journal itself is locked, so that the lock of a process that is killed goes with it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        file = self._path.open("rb+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            _mend(file)
        except BaseException:
            file.close()
            raise
        self._file = file
        return True

    def release(self) -> None:
        assert self._file is not None, "a lock is released by who has it"
        file, self._file = self._file, None
        file.close()


def _mend(file: IO[bytes]) -> None:
    """Take off a last line that a dying process left half written; it was told to nobody."""
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    content = file.read()
    if content.startswith(START[: len(content)]):  # else it is somebody's file
        file.truncate(content.rfind(b"\n") + 1)


def open_journal(path: Path) -> JournalStorage:
    """The storage in a file, which is made if it is not there."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    lock: Any = None
    if fcntl is not None:
        lock = Lock(path)
        lock.acquire()  # which mends it
        lock.release()
    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no journal of a search, or is damaged; name another file by --storage"
        ) from error
