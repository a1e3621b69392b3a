"""The journal of a study: lines that survive whoever writes them."""

from __future__ import annotations

import datetime
import functools
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

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
        self._backend.append_logs([log])


def _written(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).isoformat(timespec="microseconds")


@functools.lru_cache(maxsize=4096)
def _described(distribution: BaseDistribution) -> str:
    return distribution_to_json(distribution)


def open_journal(path: Path) -> Journal:
    """The storage in a file, which is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    lock: Any = None
    if fcntl is not None:
        lock = Lock(path)
        lock.acquire()  # which mends it
        lock.release()
    try:
        return Journal(JournalFileBackend(str(path), lock_obj=lock))
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
