"""The note in the folder of a running search: which study it works on, and where."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from chop.actions.search.store.lock import is_at, lock_descriptor

FILE = "running.json"
PAUSES = (0.0, *[0.05] * 10)  # seconds between attempts; `is_running` locks for a moment


@dataclass(frozen=True)
class Note:
    """What is known of a search before it has written search.json."""

    study: str | None = None  # None: there is no study yet, as the parent is being trained
    storage: str | None = None  # None: its URL has a password, which no file may hold
    command: str = "ch search"
    started: str | None = None


class Running:
    """The note of this process, locked while it runs; the system unlocks it if it is killed.

    Of several processes in one folder, only the first writes the note.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._file: int | None = None

    def __enter__(self) -> Running:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            except PermissionError:  # it belongs to another user
                return self
            is_locked = _locked(file)
            if is_locked and is_at(self.path, file):
                self._file = file
                return self
            os.close(file)
            if not is_locked:
                return self

    @property
    def is_first(self) -> bool:
        """Whether no other process runs in this folder."""
        return self._file is not None

    def write(self, note: Note) -> None:
        """Replace the note; the first line is whole whenever this process is killed."""
        if self._file is not None:
            line = json.dumps(dataclasses.asdict(note)).encode() + b"\n"
            try:
                os.lseek(self._file, 0, os.SEEK_SET)
                os.write(self._file, line)
                os.ftruncate(self._file, len(line))
            except OSError as error:
                raise OSError(
                    f"cannot write {self.path}: {error.strerror}; free some space, then --resume"
                ) from error

    def remove(self) -> None:
        """Remove the note once the files of the search are written."""
        if self._file is not None:
            with contextlib.suppress(PermissionError):  # Windows, where it is in use
                self.path.unlink(missing_ok=True)

    def __exit__(self, *error: object) -> None:
        if self._file is None:
            return
        if os.fstat(self._file).st_size == 0:
            self.remove()
        os.close(self._file)


def _locked(file: int) -> bool:
    for pause in PAUSES:
        time.sleep(pause)
        if lock_descriptor(file):
            return True
    return False


def read_note(folder: Path) -> Note | None:
    """Return the note of a search that runs here or was killed, None if there is no note."""
    try:
        line = (folder / FILE).read_text(encoding="utf-8").partition("\n")[0]
        facts = json.loads(line)
    except (OSError, ValueError, RecursionError):
        return None
    names = {field.name for field in dataclasses.fields(Note)}
    if not isinstance(facts, dict) or not facts.keys() <= names:
        return None
    return Note(**facts) if all(isinstance(v, str | None) for v in facts.values()) else None


def is_running(folder: Path) -> bool:
    """Whether the process that wrote the note in this folder still runs."""
    try:
        file = os.open(folder / FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not lock_descriptor(file, shared=True)
    finally:
        os.close(file)
