"""The journal of a study: lines that survive whoever writes them."""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.distributions import distribution_to_json
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._storage import JournalOperation
from optuna.trial import FrozenTrial

from chop.actions.search.sharing import Common

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

try:
    import fcntl
except ImportError:  # Windows, where Optuna's own lock has to do
    fcntl = None  # type: ignore[assignment]


SYNC_SECONDS = 0.2  # for which a machine that crashes may forget what nobody waits for
START = b'{"op_code":'  # of every line


class File(JournalFileBackend):
    """The file of a journal: kept open, and locked itself while somebody writes.

    So the lock of a process that is killed goes with it, and a line that it left half written,
    which was told to nobody, is taken off before the next.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._file = os.open(path, os.O_RDWR | os.O_APPEND)
        weakref.finalize(self, os.close, self._file)
        self._synced = 0.0
        with self._alone():
            pass  # which mends it

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write lines, which survive this process and the machine."""
        with self._alone():
            self._write(_lines(logs), os.fstat(self._file).st_size, urgent=True)

    def append_known(self, log: dict[str, Any], check: Callable[[], int]) -> None:
        """Write a line that is not read again, which survives this process.

        `check` may refuse once nobody else can write, and says how many lines there are.
        """
        line = _lines([log])
        with self._alone():
            number, size = check(), os.fstat(self._file).st_size
            self._write(line, size, urgent=False)
            self._log_number_offset[number + 1] = size + len(line)

    def is_read(self, number: int) -> bool:
        """Whether there is nothing after so many lines."""
        return self._log_number_offset.get(number) == os.fstat(self._file).st_size

    def forget(self, read: int) -> None:
        """Of the lines that are known, keep where the last one ends."""
        self._log_number_offset = {0: 0, read: self._log_number_offset[read]}

    def _write(self, lines: bytes, size: int, urgent: bool) -> None:
        try:
            while lines:
                lines = lines[os.write(self._file, lines) :]
            if urgent or time.monotonic() - self._synced > SYNC_SECONDS:
                os.fsync(self._file)
                self._synced = time.monotonic()
        except OSError:
            os.ftruncate(self._file, size)
            raise

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            _mend(self._file)
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


_COMPACT = json.JSONEncoder(separators=(",", ":"))


def _lines(logs: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(_COMPACT.encode(log).encode() + b"\n" for log in logs)


def _mend(file: int) -> None:
    """Take off a last line that has no end."""
    size = os.fstat(file).st_size
    if size == 0 or os.pread(file, 1, size - 1) == b"\n":
        return
    content = os.pread(file, size, 0)
    if content.startswith(START[: len(content)]):  # else it is somebody's file
        os.ftruncate(file, content.rfind(b"\n") + 1)


class Journal(JournalStorage):
    """Optuna's storage in a file, to which a finished trial is added without reading it back."""

    def __init__(self, backend: JournalFileBackend) -> None:
        self._common = Common()
        super().__init__(backend)

    def _sync_with_backend(self) -> None:
        """Read what is new; of that, trials share what is the same in all of them."""
        replay = self._replay_result
        known = len(replay._trials)
        super()._sync_with_backend()
        for trial_id in range(known, len(replay._trials)):
            self._common.share(replay._trials[trial_id])
        if isinstance(self._backend, File):
            self._backend.forget(replay.log_number_read)

    def append(self, study_id: int, trial: FrozenTrial) -> None:
        """The line that `create_new_trial` would write, for who alone creates trials."""
        assert trial.datetime_start is not None
        assert trial.datetime_complete is not None
        single = trial.values is not None and len(trial.values) == 1
        log = {
            "op_code": JournalOperation.CREATE_TRIAL,
            "worker_id": self._worker_id_prefix + "finished",
            "study_id": study_id,
            "state": trial.state,
            "value": trial.values[0] if single else None,
            "values": None if single else trial.values,
            "datetime_start": _written(trial.datetime_start),
            "datetime_complete": _written(trial.datetime_complete),
            "distributions": {k: _described(d) for k, d in trial.distributions.items()},
            "params": {
                k: trial.distributions[k].to_internal_repr(v) for k, v in trial.params.items()
            },
            "user_attrs": trial.user_attrs,
            "system_attrs": trial.system_attrs,
            "intermediate_values": {},
        }
        with self._thread_lock:  # the beat is written by a thread of its own
            if not isinstance(self._backend, File):
                self._backend.append_logs([log])
                return
            check = functools.partial(self._check_next, self._backend, study_id, trial.number)
            self._backend.append_known(log, check)
            self._enter(study_id, trial)
            self._backend.forget(self._replay_result.log_number_read)

    def _enter(self, study_id: int, trial: FrozenTrial) -> None:
        """What reading its line would come to, with the trial itself instead of a copy."""
        replay = self._replay_result
        trial._trial_id = len(replay._trials)
        replay._trials[trial._trial_id] = trial
        replay._study_id_to_trial_ids[study_id].append(trial._trial_id)
        replay._trial_id_to_study_id[trial._trial_id] = study_id
        replay.log_number_read += 1

    def _check_next(self, file: File, study_id: int, number: int) -> int:
        """A trial is numbered by its place: nobody else may have added one."""
        replay = self._replay_result
        if not file.is_read(replay.log_number_read):
            self._sync_with_backend()
        if len(replay._study_id_to_trial_ids[study_id]) != number:
            raise OSError("another search adds trials to it as well; stop one of them")
        return replay.log_number_read


def _written(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).isoformat(timespec="microseconds")


@functools.lru_cache(maxsize=4096)
def _described(distribution: BaseDistribution) -> str:
    return distribution_to_json(distribution)


def open_journal(path: Path) -> Journal:
    """The storage in a file, which is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    backend = JournalFileBackend(str(path)) if fcntl is None else File(path)
    try:
        return Journal(backend)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no journal of a search, or is damaged; name another file by --storage"
        ) from error


class _Whole(FrozenTrial):
    """A trial that a storage takes as it is, although storages copy what they get."""

    def __deepcopy__(self, memo: Any) -> _Whole:
        return self


def add_as_it_is(study: Study, trial: FrozenTrial) -> None:
    """Add a trial that nobody else holds."""
    trial.__class__ = _Whole
    study._storage.create_new_trial(study._study_id, trial)
    trial.__class__ = FrozenTrial
