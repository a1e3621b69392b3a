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
from chop.actions.search.store.lock import lock_file
from chop.actions.search.store.rows import TrialRow, distribution_json
from chop.actions.search.store.urls import STORAGES, url_for_sqlalchemy
from chop.extras import install_command
from chop.system.redaction import redacted

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from sqlalchemy import Connection, Table

SQLITE_PATIENCE = 60  # seconds that one process waits while another writes
SYNC_SECONDS = 0.2  # a machine that crashes may lose the trials of this long
SQLITE_HEADER = b"SQLite format 3\0"
OPTUNA_TABLES = {"studies", "trials", "version_info"}  # of every database with a study
ADVISORY = 0x4D415345  # the first key of our locks in a PostgreSQL server
Rows = list[dict[str, Any]]
# the tables of Optuna's schema that we fill ourselves: its own insertion of one trial takes a
# query for each of its parameters, 20 ms for 16 of them
PARTS = ("params", "user_attributes", "system_attributes", "values")
TABLES = ("trials", *(f"trial_{part}" for part in PARTS))


class DatabaseBackend:
    """Optuna's tables in SQLite or PostgreSQL, to which one process adds the trials of a study."""

    def __init__(self, url: str, file: Path | None, *, write: bool) -> None:
        from sqlalchemy import MetaData

        if file is not None:
            _check_is_ours(file)
        self.storage = _rdb_storage(url)
        self.engine, self._file = self.storage.engine, file
        self._lock = contextlib.ExitStack()
        self._synced, self._skips_syncs = 0.0, write and self._write_ahead()
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
            name = f"{self._file.name}-{study_id}.lock"
            return lock_file(self._file.with_name(name), self._lock)
        from sqlalchemy import func, select

        # a session lock: the server drops it when this connection ends
        connection = self._lock.enter_context(self.engine.connect())
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        return bool(connection.scalar(select(func.pg_try_advisory_lock(ADVISORY, study_id))))

    def begin(self, study_id: int, unfinished: Iterable[tuple[int, int]]) -> None:
        """Prepare to add trials to a study with these unfinished (number, trial id) pairs."""
        self._study_id, self._reserved = study_id, dict(unfinished)

    def append(self, row: TrialRow) -> None:
        """Add a trial, which has the next number of its study."""
        from sqlalchemy import insert

        trial = {
            "study_id": self._study_id,
            "number": row.number,
            "state": row.state,
            "datetime_start": _utc(row.started),
            "datetime_complete": _utc(row.completed),
        }
        with self._transaction() as connection:
            if self._last_number(connection) != row.number - 1:
                raise OSError(NOT_ALONE)
            added = connection.execute(insert(self._tables["trials"]), trial)
            assert added.inserted_primary_key is not None
            trial_id: int = added.inserted_primary_key[0]
            self._insert(connection, "params", trial_id, _params(row))
            self._insert(connection, "system_attributes", trial_id, _attributes(row.system_attrs))
            self._insert_outcome(connection, trial_id, row)
        if row.completed is None:
            self._reserved[row.number] = trial_id

    def finish(self, row: TrialRow) -> None:
        """Complete a trial that was appended unfinished."""
        from sqlalchemy import update

        trials, trial_id = self._tables["trials"], self._reserved[row.number]
        ended = {"state": row.state, "datetime_complete": _utc(row.completed)}
        with self._transaction() as connection:
            connection.execute(update(trials).where(trials.c.trial_id == trial_id), ended)
            self._insert_outcome(connection, trial_id, row)
        del self._reserved[row.number]

    def _insert_outcome(self, connection: Connection, trial_id: int, row: TrialRow) -> None:
        self._insert(connection, "user_attributes", trial_id, _attributes(row.user_attrs))
        values = [{"objective": i, **_value(value)} for i, value in enumerate(row.values or ())]
        self._insert(connection, "values", trial_id, values)

    def _insert(self, connection: Connection, part: str, trial_id: int, rows: Rows) -> None:
        from sqlalchemy import insert

        if rows:
            complete = [{"trial_id": trial_id, **row} for row in rows]
            connection.execute(insert(self._tables[f"trial_{part}"]), complete)

    def _last_number(self, connection: Connection) -> int:
        """Return the number of the trial that was added last, -1 before the first."""
        from sqlalchemy import select

        trials: Table = self._tables["trials"]
        ours = select(trials.c.number).where(trials.c.study_id == self._study_id)
        last = connection.scalar(ours.order_by(trials.c.trial_id.desc()).limit(1))
        return -1 if last is None else int(last)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Open a transaction; SQLite syncs its file from time to time, a server always does."""
        from sqlalchemy import text

        with self.engine.connect() as connection:
            if not self._skips_syncs or time.monotonic() - self._synced > SYNC_SECONDS:
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
        """Close the connections and release the lock."""
        self._lock.close()
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
            f"--storage {redacted(url)}: its driver is not installed; {install_command('postgres')}"
        ) from error
    except ArgumentError as error:
        raise ConfigError(
            f"--storage {redacted(url)} is not a supported storage ({reason(error, url)}); "
            f"use {STORAGES}"
        ) from error


def _utc(moment: datetime.datetime | None) -> datetime.datetime | None:
    """Return a moment as Optuna's tables store it: in UTC, without a time zone."""
    return moment and moment.astimezone(datetime.UTC).replace(tzinfo=None)


def _params(row: TrialRow) -> Rows:
    texts = {name: distribution_json(d) for name, d in row.distributions.items()}
    return [
        {"param_name": name, "param_value": value, "distribution_json": texts[name]}
        for name, value in row.params.items()
    ]


def _attributes(attributes: Mapping[str, Any]) -> Rows:
    return [{"key": key, "value_json": json.dumps(value)} for key, value in attributes.items()]


def _value(value: float) -> dict[str, Any]:
    """Return a value as Optuna's tables store it: infinite ones by name."""
    if math.isinf(value):
        return {"value": None, "value_type": "INF_POS" if value > 0 else "INF_NEG"}
    return {"value": value, "value_type": "FINITE"}
