"""The journal of a study: lines that survive whoever writes them."""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.distributions import distribution_to_json
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._storage import JournalOperation
from optuna.trial import FrozenTrial, TrialState

from chop.actions.options import ConfigError
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
FIRST = START + b"0,"  # of the first one, which creates a study
LONGEST_FIRST = 1 << 16  # bytes: names of studies are short
NOT_ALONE = "another search adds trials to it as well; stop one of them"


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
        with self.alone():
            pass  # which mends it

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write lines, which survive this process and the machine."""
        with self.alone():
            self._write(_lines(logs), os.fstat(self._file).st_size, urgent=True)

    def append_known(
        self, logs: list[dict[str, Any]], check: Callable[[], int], *, urgent: bool
    ) -> None:
        """Write lines that are not read again, which survive this process.

        `check` may refuse once nobody else can write, and says how many lines there are. If they
        are `urgent`, they survive the machine as well.
        """
        lines = _lines(logs)
        with self.alone():
            number, size = check(), os.fstat(self._file).st_size
            self._write(lines, size, urgent)
            self._log_number_offset = {0: 0, number + len(logs): size + len(lines)}

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
    def alone(self) -> Iterator[None]:
        """Meanwhile nobody else writes."""
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

    def check_end(self) -> None:
        """Refuse a last line that cannot be read: after the next one, nothing could be."""
        backend = self._backend
        if isinstance(backend, File) and not backend.is_read(self._replay_result.log_number_read):
            with backend.alone():  # unless another process has just written it
                self._sync_with_backend()
                if not backend.is_read(self._replay_result.log_number_read):
                    raise ValueError("its last line is not one of a journal")

    def close(self) -> None:
        """Nothing is held that would have to be given back."""

    def append(self, study_id: int, trial: FrozenTrial, *, urgent: bool = False) -> None:
        """The line that `create_new_trial` would write, for who alone creates trials."""
        single = trial.values is not None and len(trial.values) == 1
        log: dict[str, Any] = {
            "op_code": JournalOperation.CREATE_TRIAL,
            "worker_id": self._nobody,
            "study_id": study_id,
            "state": trial.state,
            "value": trial.values[0] if single else None,
            "values": None if single else trial.values,
            "datetime_start": trial.datetime_start and _written(trial.datetime_start),
            "distributions": {k: described(d) for k, d in trial.distributions.items()},
            "params": {
                k: trial.distributions[k].to_internal_repr(v) for k, v in trial.params.items()
            },
            "user_attrs": trial.user_attrs,
            "system_attrs": trial.system_attrs,
            "intermediate_values": {},
        }
        if trial.datetime_complete is not None:
            log["datetime_complete"] = _written(trial.datetime_complete)
        check = functools.partial(self._check_next, study_id, trial.number)
        with self._thread_lock:  # the beat is written by a thread of its own
            self._append_known([log], check, urgent=urgent)
            self._enter(study_id, trial)

    def finish(
        self,
        trial_id: int,
        attributes: Mapping[str, Any],
        state: TrialState,
        values: Sequence[float] | None,
        *,
        urgent: bool = True,
    ) -> None:
        """End a trial with all that came of it, unless somebody else has."""
        about = {"worker_id": self._nobody, "trial_id": trial_id}
        logs: list[dict[str, Any]] = [
            {"op_code": JournalOperation.SET_TRIAL_USER_ATTR, **about, "user_attr": {key: value}}
            for key, value in attributes.items()
        ]
        end = {
            "state": state,
            "values": values,
            "datetime_complete": _written(datetime.datetime.now()),
        }
        logs.append({"op_code": JournalOperation.SET_TRIAL_STATE_VALUES, **about, **end})
        with self._thread_lock:
            self._append_known(logs, lambda: self._check_open(trial_id), urgent=urgent)
            self._replay_result.apply_logs(logs)

    @property
    def _nobody(self) -> str:
        """The name under lines whose effect is known, which Optuna asks nobody about."""
        return self._worker_id_prefix + "known"

    def _append_known(
        self, logs: list[dict[str, Any]], check: Callable[[], int], *, urgent: bool
    ) -> None:
        """Write lines, and leave it to the caller to enter what they say."""
        if isinstance(self._backend, File):
            self._backend.append_known(logs, check, urgent=urgent)
        else:  # in which others can write between these two
            check()
            self._backend.append_logs(logs)

    def _enter(self, study_id: int, trial: FrozenTrial) -> None:
        """What reading its line would come to, with the trial itself instead of a copy."""
        replay = self._replay_result
        trial._trial_id = len(replay._trials)
        replay._trials[trial._trial_id] = trial
        replay._study_id_to_trial_ids[study_id].append(trial._trial_id)
        replay._trial_id_to_study_id[trial._trial_id] = study_id
        replay.log_number_read += 1

    def _check_next(self, study_id: int, number: int) -> int:
        """A trial is numbered by its place: nobody else may have added one."""
        read = self._read()
        if len(self._replay_result._study_id_to_trial_ids[study_id]) != number:
            raise OSError(NOT_ALONE)
        return read

    def _check_open(self, trial_id: int) -> int:
        read = self._read()
        if self._replay_result.get_trial(trial_id).state.is_finished():
            raise UpdateFinishedTrialError(f"trial {trial_id} is finished")
        return read

    def _read(self) -> int:
        """How many lines there are, all of which are known now."""
        known = self._replay_result.log_number_read
        if not isinstance(self._backend, File) or not self._backend.is_read(known):
            self._sync_with_backend()
        return self._replay_result.log_number_read


def _written(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).isoformat(timespec="microseconds")


@functools.lru_cache(maxsize=4096)
def described(distribution: BaseDistribution) -> str:
    """As storages write it."""
    return distribution_to_json(distribution)


def open_journal(path: Path) -> Journal:
    """The storage in a file, which is made if it is not there; no other file is written to."""
    _check_first_line(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    journal = Journal(JournalFileBackend(str(path)) if fcntl is None else File(path))
    journal.check_end()
    return journal


def _check_first_line(path: Path) -> None:
    """Refuse what is no journal: whoever appends to it destroys it.

    Of a first line without an end only its beginning was written, before its search was killed.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        line = file.readline(LONGEST_FIRST)
    whole = line.endswith(b"\n")
    if line and not (line.startswith(FIRST) and (_creates_study(line) if whole else True)):
        raise ConfigError(
            f"{path} is not the journal of a search, or has lost its beginning; it is left as it "
            f"is: name a new file, or the journal of a study, by --storage"
        )


def _creates_study(line: bytes) -> bool:
    try:
        log = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(log, dict) and "study_name" in log


class _Whole(FrozenTrial):
    """A trial that a storage takes as it is, although storages copy what they get."""

    def __deepcopy__(self, memo: Any) -> _Whole:
        return self


def add_as_it_is(study: Study, trial: FrozenTrial) -> None:
    """Add a trial that nobody else holds."""
    trial.__class__ = _Whole
    study._storage.create_new_trial(study._study_id, trial)
    trial.__class__ = FrozenTrial
