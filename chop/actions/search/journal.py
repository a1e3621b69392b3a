"""The journal of a study: lines that survive whoever writes them."""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.distributions import distribution_to_json
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._storage import JournalOperation
from optuna.trial import FrozenTrial

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
        self._ours = -1  # where the file ends if nobody else has written since we looked
        with self._alone():
            pass  # which mends it

    def append_logs(
        self,
        logs: list[dict[str, Any]],
        *,
        urgent: bool = True,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Write lines, which survive this process; if they are `urgent`, the machine as well.

        `check` looks at what others have written, if they have, and may refuse.
        """
        lines = b"".join(_COMPACT.encode(log).encode() + b"\n" for log in logs)
        with self._alone():
            size = os.fstat(self._file).st_size
            known = size == self._ours
            if check is not None and not known:
                check()
                known = True
            self._write(lines, size, urgent)
            self._ours = size + len(lines) if known else -1

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
            if isinstance(self._backend, File):
                check = functools.partial(self._check_next, study_id, trial.number)
                self._backend.append_logs([log], urgent=False, check=check)
            else:
                self._backend.append_logs([log])

    def _check_next(self, study_id: int, number: int) -> None:
        """A trial is numbered by its place: nobody else may have added one."""
        self._sync_with_backend()
        if len(self._replay_result.get_all_trials(study_id, None)) != number:
            raise OSError("another search adds trials to it as well; stop one of them")


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
