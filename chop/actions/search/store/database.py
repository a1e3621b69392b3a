"""A study in a database: a finished trial is written in one transaction."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError
from chop.actions.search.store.errors import NOT_ALONE, reason
from chop.actions.search.store.lock import LockFile
from chop.actions.search.store.rows import TrialRow, distribution_json
from chop.actions.search.store.urls import STORAGES, url_for_sqlalchemy
from chop.redaction import redacted

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from sqlalchemy import Connection, Table

SQLITE_PATIENCE = 60  # seconds that one process waits while another writes
SYNC_SECONDS = 0.2  # a machine that crashes may lose the trials of this long
SQLITE_HEADER = b"SQLite format 3\0"
OPTUNA_TABLES = {"studies", "trials", "version_info"}  # of every database with a study
ADVISORY = 0x4D415345  # the first key of our locks in a PostgreSQL server
# the tables of Optuna's schema that we fill ourselves: its own insertion of one trial takes a
# query for each of its parameters, 20 ms for 16 of them
TABLES = (
    "trials",
    "trial_params",
    "trial_user_attributes",
    "trial_system_attributes",
    "trial_values",
)


class DatabaseBackend:
    """Optuna's tables in SQLite or PostgreSQL, to which one process adds the trials of a study."""

    def __init__(self, url: str, file: Path | None, *, write: bool) -> None:
        from sqlalchemy import MetaData

        if file is not None:
            _check_is_ours(file)
        self.storage = _rdb_storage(url)
        self.engine = self.storage.engine
        self._file = file
        self._lock_file: LockFile | None = None
        self._lock_connection: Connection | None = None
        self._synced, self._hasty = 0.0, write and self._write_ahead()
        schema = MetaData()
        schema.reflect(self.engine, only=TABLES)
        self._tables = schema.tables
        self._reserved: dict[int, int] = {}  # trial ids of unfinished trials, by number

    def _write_ahead(self) -> bool:
        """Whether SQLite writes to a log beside the database, so that readers do not block it."""
        from sqlalchemy import text
        from sqlalchemy.exc import OperationalError

        if self._file is None:
            return False
        with contextlib.suppress(OperationalError), self.engine.connect() as connection:
            return bool(connection.execute(text("PRAGMA journal_mode=WAL")).scalar() == "wal")
        return False

    def lock(self, study_id: int) -> bool:
        """Whether no other process writes this study."""
        if self._file is not None:
            self._lock_file = LockFile(self._file.with_name(f"{self._file.name}-{study_id}.lock"))
            return self._lock_file.acquire()
        from sqlalchemy import func, select

        # a session lock: the server drops it when this connection ends
        connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._lock_connection = connection
        return bool(connection.scalar(select(func.pg_try_advisory_lock(ADVISORY, study_id))))

    def begin(self, study_id: int, unfinished: Iterable[tuple[int, int]]) -> None:
        """Prepare to add trials to a study with these unfinished (number, trial id) pairs."""
        self._study_id = study_id
        self._reserved = dict(unfinished)

    def append(self, row: TrialRow) -> None:
        """Add a trial, which has the next number of its study."""
        from sqlalchemy import insert

        trials = self._tables["trials"]
        with self._transaction() as connection:
            if self._last_number(connection) != row.number - 1:
                raise OSError(NOT_ALONE)
            added = connection.execute(insert(trials), {"study_id": self._study_id, **_trial(row)})
            assert added.inserted_primary_key is not None
            trial_id: int = added.inserted_primary_key[0]
            self._insert(connection, "trial_params", trial_id, _params(row))
            self._insert(connection, "trial_system_attributes", trial_id, _rows(row.system_attrs))
            self._insert_outcome(connection, trial_id, row)
        if row.completed is None:
            self._reserved[row.number] = trial_id

    def finish(self, row: TrialRow) -> None:
        """Complete a trial that was appended unfinished."""
        from sqlalchemy import update

        trials, trial_id = self._tables["trials"], self._reserved[row.number]
        ended = {"state": row.state, "datetime_complete": _written(row.completed)}
        with self._transaction() as connection:
            connection.execute(update(trials).where(trials.c.trial_id == trial_id), ended)
            self._insert_outcome(connection, trial_id, row)
        del self._reserved[row.number]

    def _insert_outcome(self, connection: Connection, trial_id: int, row: TrialRow) -> None:
        self._insert(connection, "trial_user_attributes", trial_id, _rows(row.user_attrs))
        self._insert(connection, "trial_values", trial_id, _values(row.values))

    def _insert(
        self, connection: Connection, table: str, trial_id: int, rows: list[dict[str, Any]]
    ) -> None:
        from sqlalchemy import insert

        if rows:
            filled = [{"trial_id": trial_id, **row} for row in rows]
            connection.execute(insert(self._tables[table]), filled)

    def _last_number(self, connection: Connection) -> int:
        """The number of the trial that was added last, -1 before the first."""
        from sqlalchemy import select

        trials: Table = self._tables["trials"]
        ours = select(trials.c.number).where(trials.c.study_id == self._study_id)
        last = connection.scalar(ours.order_by(trials.c.trial_id.desc()).limit(1))
        return -1 if last is None else int(last)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """All or nothing; SQLite waits for the disk from time to time, a server always does."""
        from sqlalchemy import text

        with self.engine.connect() as connection:
            if not self._hasty or time.monotonic() - self._synced > SYNC_SECONDS:
                with connection.begin():
                    yield connection
                self._synced = time.monotonic()
                return
            try:
                with connection.begin():
                    connection.execute(text("PRAGMA synchronous=NORMAL"))
                    yield connection
            finally:
                connection.execute(text("PRAGMA synchronous=FULL"))

    def close(self) -> None:
        """Give the connections and the lock back."""
        if self._lock_file is not None:
            self._lock_file.release()
        if self._lock_connection is not None:
            self._lock_connection.close()
        self.storage.remove_session()
        self.engine.dispose()


def _check_is_ours(file: Path) -> None:
    """Refuse to add a study to the SQLite database of another program."""
    if not file.exists():
        return
    with file.open("rb") as opened:
        beginning = opened.read(len(SQLITE_HEADER))
    if beginning not in (b"", SQLITE_HEADER):  # SQLite itself takes any short file for a new one
        raise ConfigError(
            f"--storage: {file} is not an SQLite database; name a new file, or the database of a "
            f"study"
        )
    address = f"{file.absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, SQLITE_PATIENCE, uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error as error:
        raise OSError(str(error)) from error
    if tables and tables.isdisjoint(OPTUNA_TABLES):
        raise ConfigError(
            f"--storage: {file} is the database of another program; name a new file, or the "
            f"database of a study"
        )


def _rdb_storage(url: str) -> RDBStorage:
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import ArgumentError

    arguments: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith("sqlite"):
        arguments["connect_args"] = {"timeout": SQLITE_PATIENCE}
    try:
        return RDBStorage(url_for_sqlalchemy(url), engine_kwargs=arguments)
    except ImportError as error:
        raise ConfigError(
            f"--storage {redacted(url)}: its driver is not installed; "
            f'.venv/bin/pip install -c constraints.txt -e ".[postgres]"'
        ) from error
    except ArgumentError as error:
        raise ConfigError(
            f"--storage {redacted(url)} is not a supported storage ({reason(error, url)}); "
            f"use {STORAGES}"
        ) from error


def _trial(row: TrialRow) -> dict[str, Any]:
    return {
        "number": row.number,
        "state": row.state,
        "datetime_start": _written(row.started),
        "datetime_complete": _written(row.completed),
    }


def _written(moment: datetime.datetime | None) -> datetime.datetime | None:
    """A moment as Optuna's tables have it: UTC without a time zone."""
    return moment and moment.astimezone(datetime.UTC).replace(tzinfo=None)


def _params(row: TrialRow) -> list[dict[str, Any]]:
    return [
        {
            "param_name": name,
            "param_value": value,
            "distribution_json": distribution_json(row.distributions[name]),
        }
        for name, value in row.params.items()
    ]


def _rows(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value_json": json.dumps(value)} for key, value in attributes.items()]


def _values(values: tuple[float, ...] | None) -> list[dict[str, Any]]:
    return [{"objective": i, **_value(value)} for i, value in enumerate(values or ())]


def _value(value: float) -> dict[str, Any]:
    """A value as Optuna's tables have it, which name the infinite ones."""
    if math.isinf(value):
        return {"value": None, "value_type": "INF_POS" if value > 0 else "INF_NEG"}
    return {"value": value, "value_type": "FINITE"}
