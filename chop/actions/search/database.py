"""A study in a database: a trial is written in one transaction."""

from __future__ import annotations

import contextlib
import datetime
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.storages._cached_storage import _CachedStorage, _StudyInfo
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import bindparam, delete, insert, inspect, select, text, update
from sqlalchemy.exc import OperationalError

from chop.actions.options import ConfigError
from chop.actions.search.journal import NOT_ALONE, SYNC_SECONDS, described
from chop.actions.search.sharing import Common

if TYPE_CHECKING:
    from sqlalchemy import Connection

# how SQLite is told not to wait for the disk, and afterwards to wait again. A server is another
# matter: it may crash, and lose what it did not wait for, while we live on and never know
HASTY, SAFE = text("PRAGMA synchronous=NORMAL"), text("PRAGMA synchronous=FULL")
STUDIES, TRIALS = models.StudyModel.__table__, models.TrialModel.__table__
LOCK = select(STUDIES.c.study_id).where(STUDIES.c.study_id == bindparam("study")).with_for_update()
# found by the ids, whose range is short, and not by counting
BEFORE = (
    select(TRIALS.c.trial_id)
    .where(TRIALS.c.trial_id >= bindparam("last"), TRIALS.c.trial_id < bindparam("trial"))
    .where(TRIALS.c.study_id == bindparam("study"))
    .limit(2)
)
HEADER = b"SQLite format 3\0"
OPTUNAS = {"studies", "trials", "version_info"}  # tables of every database with a study
UNFINISHED = [state for state in TrialState if not state.is_finished()]
END = update(TRIALS).where(TRIALS.c.trial_id == bindparam("trial"), TRIALS.c.state.in_(UNFINISHED))


def check_tables(path: Path, patience: float) -> None:
    """Refuse to add a study to the SQLite database of another program."""
    if not path.exists():
        return
    with path.open("rb") as file:
        begins = file.read(len(HEADER))
    if begins not in (b"", HEADER):  # SQLite itself takes a short file of any content for a new one
        raise ConfigError(
            f"--storage: {path} is not an SQLite database; name a new file, or the database of a "
            f"study"
        )
    address = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, patience, uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error as error:
        raise OSError(str(error)) from error
    if tables and tables.isdisjoint(OPTUNAS):
        raise ConfigError(
            f"--storage: {path} is the database of another program; name a new file, or the "
            f"database of a study"
        )


class Database(_CachedStorage):
    """Optuna's storage, for trials that come as a whole; what is finished is read once."""

    def __init__(self, backend: RDBStorage) -> None:
        super().__init__(backend)
        self._common, self._synced = Common(), 0.0
        self._hasty = False  # whether a transaction need not wait for the disk

    def write_ahead(self) -> None:
        """Have SQLite add to a file beside the database: commits are cheap, and readers no bar."""
        if self._backend.engine.name != "sqlite":
            return
        with contextlib.suppress(OperationalError), self._backend.engine.connect() as connection:
            self._hasty = connection.execute(text("PRAGMA journal_mode=WAL")).scalar() == "wal"

    def append(self, study_id: int, trial: FrozenTrial, *, urgent: bool = False) -> None:
        """Add a trial, which survives this process; if it is `urgent`, the machine as well."""
        row = models.TrialModel(
            study_id=study_id,
            number=trial.number,
            state=trial.state,
            datetime_start=trial.datetime_start,
            datetime_complete=trial.datetime_complete,
        )
        last = self._id_before(study_id, trial.number)
        with self._transaction(urgent) as connection:
            if self._backend.engine.name != "sqlite":  # where the first write locks everything
                connection.execute(LOCK, {"study": study_id})
            added = connection.execute(insert(TRIALS), _columns(row))
            assert added.inserted_primary_key is not None
            trial_id: int = added.inserted_primary_key[0]
            about = {"study": study_id, "trial": trial_id, "last": last}
            before = list(connection.execute(BEFORE, about).scalars())
            if before != ([last] if trial.number else []):
                raise OSError(NOT_ALONE)  # trials are numbered in their order
            _insert(connection, models.TrialParamModel, trial_id, _params(trial))
            _insert(connection, models.TrialUserAttributeModel, trial_id, _rows(trial.user_attrs))
            system = _rows(trial.system_attrs)
            _insert(connection, models.TrialSystemAttributeModel, trial_id, system)
            _insert(connection, models.TrialValueModel, trial_id, _values(trial.values))
        trial._trial_id = trial_id
        self._enter(study_id, trial)

    def _id_before(self, study_id: int, number: int) -> int:
        """The id of the trial before, which has to be the last one that is there."""
        known = self._study_id_and_number_to_trial_id
        if number and (study_id, number - 1) not in known:
            self._read_trials_from_remote_storage(study_id)
        found = known.get((study_id, number - 1), None if number else -1)
        if found is None:
            raise OSError(NOT_ALONE)
        return found

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """As Optuna's, but in one statement: nobody can claim or finish the trial in between."""
        if values is not None or state.is_finished():
            return super().set_trial_state_values(trial_id, state, values)
        now = datetime.datetime.now()
        running = state == TrialState.RUNNING
        fresh = {"state": state} | ({"datetime_start": now} if running else {})
        change = (
            update(TRIALS)
            .where(TRIALS.c.trial_id == trial_id)
            .where(TRIALS.c.state.in_([TrialState.WAITING] if running else UNFINISHED))
        )
        with self._backend.engine.begin() as connection:
            if connection.execute(change.values(**fresh)).rowcount:
                return True
            state_of = select(TRIALS.c.state).where(TRIALS.c.trial_id == trial_id)
            found = connection.execute(state_of).scalar()
        if found is not None and found.is_finished():
            raise UpdateFinishedTrialError(f"trial {trial_id} is finished")
        return False

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
        ended = models.TrialModel(state=state, datetime_complete=datetime.datetime.now())
        with self._transaction(urgent) as connection:
            done = connection.execute(END.values(**_columns(ended)), {"trial": trial_id})
            if done.rowcount == 0:
                raise UpdateFinishedTrialError(f"trial {trial_id} is finished")
            rows, scores = _rows(attributes), _values(values)
            _replace(connection, models.TrialUserAttributeModel, trial_id, rows, "key")
            _replace(connection, models.TrialValueModel, trial_id, scores, "objective")

    @contextlib.contextmanager
    def _transaction(self, urgent: bool) -> Iterator[Connection]:
        """All or nothing; the disk is waited for if it is urgent, and from time to time."""
        with self._backend.engine.connect() as connection:
            if urgent or not self._hasty or time.monotonic() - self._synced > SYNC_SECONDS:
                with connection.begin():
                    yield connection
                self._synced = time.monotonic()
                return
            try:
                with connection.begin():
                    connection.execute(HASTY)
                    yield connection
            finally:
                connection.execute(SAFE)

    def _enter(self, study_id: int, trial: FrozenTrial) -> None:
        """What reading its rows would come to, with the trial itself instead of a copy."""
        with self._lock:
            study = self._studies.setdefault(study_id, _StudyInfo())
            super()._add_trials_to_cache(study_id, [trial])
            if not trial.state.is_finished():
                study.unfinished_trial_ids.add(trial._trial_id)
            elif len(study.trials) == trial.number + 1:  # all before it are known
                study.last_finished_trial_id = trial._trial_id

    def _add_trials_to_cache(self, study_id: int, trials: list[FrozenTrial]) -> None:
        for trial in trials:
            self._common.share(trial)
        super()._add_trials_to_cache(study_id, trials)

    def close(self) -> None:
        """Give the connections back."""
        self._backend.remove_session()
        self._backend.engine.dispose()


def _columns(row: models.TrialModel) -> dict[str, Any]:
    """What is set of a row, as Optuna writes it."""
    found = {
        a.columns[0].name: getattr(row, a.key) for a in inspect(models.TrialModel).column_attrs
    }
    return {name: value for name, value in found.items() if value is not None}


def _insert(connection: Connection, model: Any, trial_id: int, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(model.__table__), [{"trial_id": trial_id, **r} for r in rows])


def _replace(
    connection: Connection, model: Any, trial_id: int, rows: list[dict[str, Any]], key: str
) -> None:
    """Insert rows, in place of what somebody who was killed has left of them."""
    table = model.__table__
    old = table.c.trial_id == trial_id, table.c[key].in_([row[key] for row in rows])
    connection.execute(delete(table).where(*old))
    _insert(connection, model, trial_id, rows)


def _params(trial: FrozenTrial) -> list[dict[str, Any]]:
    return [
        {
            "param_name": key,
            "param_value": trial.distributions[key].to_internal_repr(value),
            "distribution_json": described(trial.distributions[key]),
        }
        for key, value in trial.params.items()
    ]


def _rows(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value_json": json.dumps(value)} for key, value in attributes.items()]


def _values(values: Sequence[float] | None) -> list[dict[str, Any]]:
    kept = [models.TrialValueModel.value_to_stored_repr(value) for value in values or ()]
    return [
        {"objective": i, "value": value, "value_type": kind} for i, (value, kind) in enumerate(kept)
    ]
