"""A study in a journal file: finished trials are appended as lines that Optuna reads."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.options import ConfigError
from chop.actions.search.store.errors import NOT_ALONE
from chop.actions.search.store.lock import lock_descriptor
from chop.actions.search.store.rows import TrialRow, distribution_json

if TYPE_CHECKING:
    from datetime import datetime

    from optuna.storages import JournalStorage

FIRST_BYTES = b'{"op_code":0,'  # of the first line, which creates a study
LONGEST_FIRST = 1 << 16  # bytes: names of studies are short
# Optuna's journal format: the operations that we write ourselves, as one appended line costs a
# tenth of JournalStorage.create_new_trial, which reads each line back and keeps it in memory
CREATE_TRIAL, SET_STATE_VALUES, SET_USER_ATTR = 4, 6, 8
SYNC_SECONDS = 0.2  # a machine that crashes may lose the trials of this long
ENCODE = json.JSONEncoder(separators=(",", ":")).encode


class JournalBackend:
    """The file of a journal, which one process writes and any number may read."""

    def __init__(self, path: Path, *, write: bool) -> None:
        self.path = path
        check_first_line(path)
        if write:
            path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT if write else os.O_RDONLY
        self._file = os.open(path, flags, 0o666)
        self._end = 0  # how much of the file is known
        self._trials = 0  # in the file, of all its studies: Optuna's next trial id
        self._reserved: dict[int, int] = {}  # trial ids of unfinished trials, by number
        self._synced = 0.0
        self._locked = write and lock_descriptor(self._file)
        try:
            self._check_end()
        except ValueError:
            self.close()
            raise

    @property
    def storage(self) -> JournalStorage:
        """Optuna's view of the file, read from its beginning."""
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        return JournalStorage(JournalFileBackend(str(self.path)))

    def lock(self, study_id: int) -> bool:
        """Whether no other process writes this journal."""
        return self._locked

    def _check_end(self) -> None:
        """Refuse a damaged last line, which Optuna skips until another line follows it.

        A line without an end was cut by the death of its process, and the process that has the
        lock removes it; without the lock, it may be one that is being written.
        """
        content = os.pread(self._file, os.fstat(self._file).st_size, 0)
        whole = content.rfind(b"\n") + 1
        if self._locked and whole < len(content):
            os.ftruncate(self._file, whole)
        json.loads(content[:whole].rstrip(b"\n").rpartition(b"\n")[2] or b"0")

    def begin(self, study_id: int, unfinished: Iterable[tuple[int, int]]) -> None:
        """Prepare to add trials to a study with these unfinished (number, trial id) pairs."""
        self._study_id, self._reserved = study_id, dict(unfinished)
        self._trials += self._new_trials()

    def append(self, row: TrialRow) -> None:
        """Add a trial, which has the next number of its study."""
        self._check_alone()
        log: dict[str, Any] = {
            "op_code": CREATE_TRIAL,
            "worker_id": "mase",
            "study_id": self._study_id,
            "state": _state(row.state),
            **_values(row.values),
            "datetime_start": _text(row.started),
            "distributions": {k: distribution_json(d) for k, d in row.distributions.items()},
            "params": row.params,
            "user_attrs": row.user_attrs,
            "system_attrs": row.system_attrs,
            "intermediate_values": {},
        }
        if row.completed is not None:
            log["datetime_complete"] = _text(row.completed)
        else:
            self._reserved[row.number] = self._trials
        self._write([log])
        self._trials += 1

    def finish(self, row: TrialRow) -> None:
        """Complete a trial that was appended unfinished."""
        assert row.completed is not None
        trial = {"worker_id": "mase", "trial_id": self._reserved.pop(row.number)}
        logs: list[dict[str, Any]] = [
            {"op_code": SET_USER_ATTR, **trial, "user_attr": {key: value}}
            for key, value in row.user_attrs.items()
        ]
        end = {"values": row.values, "datetime_complete": _text(row.completed)}
        logs.append({"op_code": SET_STATE_VALUES, **trial, "state": _state(row.state), **end})
        self._check_alone()
        self._write(logs)

    def _new_trials(self) -> int:
        """Return the number of trials that were appended since our last line."""
        size = os.fstat(self._file).st_size
        lines = os.pread(self._file, size - self._end, self._end).splitlines()
        self._end = size
        return sum(json.loads(line)["op_code"] == CREATE_TRIAL for line in lines)

    def _check_alone(self) -> None:
        """Accept what Optuna's own tools have appended, apart from trials."""
        if os.fstat(self._file).st_size != self._end and self._new_trials():
            raise OSError(NOT_ALONE)

    def _write(self, logs: Iterable[dict[str, Any]]) -> None:
        lines = "".join(f"{ENCODE(log)}\n" for log in logs).encode()
        try:
            left = lines
            while left:
                left = left[os.write(self._file, left) :]
            if time.monotonic() - self._synced > SYNC_SECONDS:
                os.fsync(self._file)
                self._synced = time.monotonic()
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._end += len(lines)

    def close(self) -> None:
        """Close the file, which releases its lock."""
        if self._file >= 0:
            if self._locked and not os.fstat(self._file).st_size:  # no study could be written
                self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1


def is_being_written(path: Path) -> bool:
    """Whether a process has the lock of a journal."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return not lock_descriptor(descriptor)
    finally:
        os.close(descriptor)


def check_first_line(path: Path) -> None:
    """Refuse a file that is not a journal, before anything is appended to it.

    A first line without an end was cut by the death of its search; only its beginning is known.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        line = file.readline(LONGEST_FIRST)
    if line and not (line.startswith(FIRST_BYTES) and _creates_study(line)):
        raise ConfigError(
            f"{path} is not the journal of a search, or has lost its beginning; it is left as it "
            f"is: name a new file, or the journal of a study, with --storage"
        )


def _creates_study(line: bytes) -> bool:
    if not line.endswith(b"\n"):
        return True
    try:
        log = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(log, dict) and "study_name" in log


def _state(name: str) -> int:
    from optuna.trial import TrialState

    return int(TrialState[name])


def _values(values: tuple[float, ...] | None) -> dict[str, Any]:
    """Return the fields of the objectives: of one, `value`, of several, `values`."""
    if values is not None and len(values) == 1:
        return {"value": values[0], "values": None}
    return {"value": None, "values": values}


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")
