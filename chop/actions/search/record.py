"""A study in a storage of Optuna's: a journal file, SQLite, PostgreSQL; nothing told is lost."""

from __future__ import annotations

import contextlib
import datetime
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.options import ConfigError
from chop.actions.search.goals import Costs
from chop.actions.search.kept import attributes_of, marks_of, outcome_of
from chop.actions.search.outcome import Outcome
from chop.actions.search.rungs import Before, Mark
from chop.actions.search.search_space.choices import Choices
from chop.actions.search.strategies.base import Chosen
from chop.actions.search.strategies.optuna import quiet, stored
from chop.redaction import redacted, redacted_text, without_marks

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from chop.actions.search.database import Database
    from chop.actions.search.journal import Journal

    Storage = Journal | Database

logger = logging.getLogger(__name__)

KINDS = ("journal", "sqlite", "postgresql")
STORAGES = "the path of a journal file, sqlite:///study.db, or postgresql://user@host/name"
IN_MEMORY = re.compile(r":memory:|[?&]mode=memory\b")
# what Optuna and we raise at lines and rows that this version would not have written
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RuntimeError)
SQLITE_PATIENCE = 60  # seconds that one process waits while another writes


class StorageError(OSError):
    """A storage that cannot be reached or written; the search stops, and can go on later."""


@dataclass(frozen=True)
class Stored:
    """A trial as it was found in the storage; without an outcome it is not finished."""

    number: int
    chosen: Chosen
    notes: Mapping[str, Any]
    outcome: Outcome | None
    waiting: bool
    worker: str
    front: tuple[Costs, ...] = ()
    last: int = -1  # of the trials that are measured together with it, as far as somebody said so
    told: int = 0  # trials of whose marks it knows


def open_storage(url: str, *, create: bool = True, writes: bool | None = None) -> Storage:
    """The storage at a URL; a path, or `journal:///path`, is a journal file.

    Who `creates` it if it is missing `writes` to it as well, unless told otherwise.
    """
    scheme, path = _parts(url)
    if not create and path is not None and not path.exists():
        raise ConfigError(f"there is no study in {path}; search first, or correct --storage")
    with reading(url), quiet():
        if scheme == "journal":
            from chop.actions.search.journal import open_journal

            assert path is not None
            return open_journal(path)
        if path is not None:
            from chop.actions.search.database import check_tables

            check_tables(path, SQLITE_PATIENCE)
        found = _database(url)
        if create if writes is None else writes:
            found.write_ahead()
        return found


def _parts(url: str) -> tuple[str, Path | None]:
    """What kind of storage it is, and its file if it is in one."""
    scheme, separator, rest = url.partition("://")
    is_path = not separator and url.partition(":")[0] not in KINDS
    if is_path and redacted(url) == url:  # a password shall not become the name of a file
        return "journal", Path(url)
    scheme = scheme.partition("+")[0]  # without the driver
    if scheme not in KINDS or not separator:
        raise ConfigError(f"--storage {redacted(url)} is no storage for studies; write {STORAGES}")
    if scheme == "journal":
        return scheme, Path(rest)
    file = rest.removeprefix("/").partition("?")[0]
    if scheme == "sqlite" and (not file or IN_MEMORY.search(rest)):
        raise ConfigError(
            f"--storage {redacted(url)} is a database in memory, and the study would be "
            f"lost with it; name a file: sqlite:///study.db"
        )
    return scheme, Path(file) if scheme == "sqlite" else None


def check_url(url: str, inside: Collection[Path] = ()) -> None:
    """Refuse what is no storage, whatever is in it; a file has to be `inside` one of the folders.

    Without any folders it may be anywhere.
    """
    scheme, path = _parts(url)
    folders = [folder.resolve() for folder in inside]
    if path and folders and not any(path.resolve().is_relative_to(f) for f in folders):
        raise ConfigError(
            f"storage: {redacted(url)} is outside the current folder and the project; "
            f"give it on the command line as --storage"
        )
    if scheme == "postgresql":
        _for_sqlalchemy(url)
    if path is not None and path.is_dir():
        raise ConfigError(f"--storage {redacted(url)} is a folder; name a file in it")
    if path is not None and path.exists() and not path.is_file():
        raise ConfigError(f"--storage {redacted(url)} is a device or a pipe; name a file")
    if path is not None and url.startswith("sqlite") and not path.absolute().parent.is_dir():
        raise ConfigError(
            f"--storage {redacted(url)}: there is no folder {path.parent}; make it first"
        )


def located(url: str) -> str:
    """The URL as processes in other folders can use it."""
    scheme, path = _parts(url)
    if path is None:
        return url
    if scheme == "journal":
        return str(path.absolute())
    head, _, rest = url.partition(":///")
    _, mark, options = rest.partition("?")
    return f"{head}:///{path.absolute()}{mark}{options}"


def _database(url: str) -> Database:
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import ArgumentError

    from chop.actions.search.database import Database

    arguments: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith("sqlite"):
        arguments["connect_args"] = {"timeout": SQLITE_PATIENCE}
    try:
        return Database(RDBStorage(_for_sqlalchemy(url), engine_kwargs=arguments))
    except ImportError as error:
        raise ConfigError(
            f"--storage {redacted(url)}: its driver is not installed; "
            f'.venv/bin/pip install -c constraints.txt -e ".[postgres]"'
        ) from error
    except ArgumentError as error:
        raise ConfigError(
            f"--storage {redacted(url)} is no storage ({_reason(error, url)}); write {STORAGES}"
        ) from error


def _for_sqlalchemy(url: str) -> str:
    """The URL with our driver; for a password that was left out, the driver looks elsewhere."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    url = without_marks(url)
    try:
        host = make_url(url).host or ""
    except (ArgumentError, ValueError) as error:
        raise ConfigError(
            f"--storage {redacted(url)} is not a valid URL ({_reason(error, url)}); "
            f"write {STORAGES}"
        ) from None  # whose text may hold the password
    if "@" in host:
        raise ConfigError(f"--storage {redacted(url)}: write an @ in the password as %40")
    if url.startswith("postgresql://"):
        url = url.replace("postgresql://", "postgresql+psycopg://", 1)
    return url.replace("{", "{{").replace("}", "}}")  # Optuna takes it for a template


def _reason(error: Exception, url: str) -> str:
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return redacted_text(lines[0], url) if lines else type(error).__name__


def _advice(reason: str) -> str:
    if "no password supplied" in reason or "password authentication failed" in reason:
        return "give the password in --storage, in PGPASSWORD or in ~/.pgpass"
    return "what it has is kept, and --resume goes on with it"


@contextlib.contextmanager
def _told(url: str) -> Iterator[None]:
    """Errors of a storage as one sentence."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except StorageError:
        raise
    except (OSError, SQLAlchemyError, StorageInternalError) as error:
        reason = _reason(error, url)
        raise StorageError(
            f"the study in {redacted(url)} cannot be read or written: {reason}; {_advice(reason)}"
        ) from error


@contextlib.contextmanager
def reading(url: str) -> Iterator[None]:
    """Errors of a storage as one sentence, and those of what is written in it."""
    try:
        with _told(url):
            yield
    except ConfigError:
        raise
    except DAMAGED as error:
        raise StorageError(
            f"the study in {redacted(url)} is damaged, or was written by another version "
            f"of MASE or Optuna ({type(error).__name__}: {_reason(error, url)}); restore a copy of "
            f"it, or name another by --storage"
        ) from error


def missing_study(study: str, url: str) -> str:
    """What is said of a study that should be there."""
    return (
        f"there is no study {study!r} in {redacted(url)}; correct --storage and --study, "
        f"or search first, without --resume"
    )


class Record:
    """One study: its trials by number, and a few words about the search as a whole."""

    def __init__(
        self,
        url: str,
        study: str,
        directions: tuple[str, ...],
        choices: Choices,
        *,
        create: bool = True,
        writes: bool | None = None,
    ) -> None:
        import optuna
        from optuna.study import StudyDirection

        self.url, self.study, self.choices = url, study, choices
        self._storage = open_storage(url, create=create, writes=writes)
        ways = [StudyDirection[d.upper()] for d in directions]
        with reading(url), quiet():
            try:
                self._id = self._storage.get_study_id_from_name(study)
                self.existed = True
            except KeyError:
                if not create:
                    raise ConfigError(missing_study(study, url)) from None
                try:
                    self._id = self._storage.create_new_study(ways, study)
                    self.existed = False
                except optuna.exceptions.DuplicatedStudyError:  # another process was faster
                    self._id = self._storage.get_study_id_from_name(study)
                    self.existed = True
            there = self._storage.get_study_directions(self._id)
        if there != ways:
            raise ValueError(
                f"the study {study!r} in {self.shown} has {len(there)} objectives "
                f"({', '.join(d.name.lower() for d in there)}), unlike this file; "
                f"give the new search another name by --study"
            )
        self._ids: dict[int, int] = {}
        self._objectives = len(ways)

    @classmethod
    def found(cls, url: str, study: str, *, create: bool = True) -> Record | None:
        """The study of that name, to look at; None if there is none."""
        storage = open_storage(url, create=create)
        with reading(url):
            try:
                number = storage.get_study_id_from_name(study)
            except KeyError:
                storage.close()
                return None
        record = cls.__new__(cls)
        record.url, record.study, record.choices = url, study, Choices([])
        record._storage, record._id, record.existed, record._ids = storage, number, True, {}
        with reading(url):
            record._objectives = len(storage.get_study_directions(number))
        return record

    # --- the search as a whole

    def close(self) -> None:
        """Give the connections back; whoever goes on gets new ones."""
        self._storage.close()

    @property
    def shown(self) -> str:
        """Where it is, for people."""
        return str(redacted(self.url))

    def attributes(self) -> dict[str, Any]:
        with reading(self.url):
            return self._storage.get_study_user_attrs(self._id)

    def about(self) -> dict[str, Any]:
        """What the search is about; empty if it was killed before it could say so."""
        with reading(self.url):
            about = self.attributes().get("about", {})
            if not isinstance(about, dict):
                raise TypeError(f"what the study is about is a table, not {type(about).__name__}")
            return about

    def note(self, key: str, value: Any) -> None:
        with _told(self.url):
            self._storage.set_study_user_attr(self._id, key, value)

    # --- trials

    def trials(self) -> list[Stored]:
        """All trials in the order of their numbers."""
        return [self._stored(trial) for trial in self.frozen()]

    def outcomes(self) -> dict[int, Outcome]:
        """What has come of the finished trials, by their numbers."""
        finished = [trial for trial in self.frozen() if trial.state.is_finished()]
        with reading(self.url):
            return {trial.number: outcome_of(trial, self._objectives) for trial in finished}

    def designs(self) -> Mapping[int, Chosen]:
        """The designs of all trials, by their numbers."""
        return _Designs(self.decoded, {t.number: t.params for t in self.frozen()})

    def decoded(self, numbers: Mapping[str, float]) -> Chosen:
        """The design that is stored as these numbers."""
        with reading(self.url):
            return self.choices.decoded(numbers)

    def unfinished(self) -> list[Stored]:
        """The trials that wait, or that somebody measures."""
        return [self._stored(trial) for trial in self.frozen() if not trial.state.is_finished()]

    def unfinished_groups(self, size: int) -> list[list[Stored]]:
        """Trials in groups of so many: those groups of which not all are finished."""
        trials = self.frozen()
        firsts = {t.number // size for t in trials if not t.state.is_finished()}
        return [
            [self._stored(trial) for trial in trials[first * size : (first + 1) * size]]
            for first in sorted(firsts)
        ]

    def waiting(self) -> set[int]:
        """The numbers of the trials that anybody may claim."""
        return {trial.number for trial in self.frozen() if trial.state.name == "WAITING"}

    def outcomes_of(self, numbers: Collection[int]) -> list[Outcome]:
        """What has come of those of the trials that are finished."""
        there = [trial for trial in self.frozen() if trial.number in numbers]
        with reading(self.url):
            return [
                outcome_of(trial, self._objectives) for trial in there if trial.state.is_finished()
            ]

    def frozen(self) -> list[FrozenTrial]:
        """The trials as Optuna has them."""
        with reading(self.url):
            found = self._storage.get_all_trials(self._id, deepcopy=False)
        self._ids |= {trial.number: trial._trial_id for trial in found}
        return sorted(found, key=lambda trial: trial.number)

    def add(self, chosen: Chosen, notes: Mapping[str, Any], out: Outcome) -> None:
        """A finished trial, in one write."""
        self._append(self._trial(out.number, chosen, notes, out.state, out))

    def publish(
        self,
        number: int,
        chosen: Chosen,
        notes: Mapping[str, Any],
        worker: str | None,
        before: Before | None = None,
        last: int = -1,
    ) -> None:
        """A trial that somebody is to measure: `worker`, or the first who claims it.

        Those up to `last` are measured together with it, and are published, too.
        """
        before = before or Before()
        about: dict[str, Any] = {"worker": worker, "front": [list(c) for c in before.front]}
        # their marks are in the storage already
        about["told"] = before.told if before.marks else 0
        about["last"] = last if last > number else None
        state = "RUNNING" if worker else "WAITING"
        given = {key: value for key, value in about.items() if value}
        self._append(self._trial(number, chosen, notes, state, given), urgent=not worker)

    def _append(self, trial: FrozenTrial, *, urgent: bool = False) -> None:
        with _told(self.url):
            self._storage.append(self._id, trial, urgent=urgent)
        self._ids[trial.number] = trial._trial_id

    def before(self, trial: Stored) -> Before:
        """What a published trial may know of others."""
        marks: dict[int, tuple[Mark, ...]] = {}
        others = [other for other in self.frozen() if other.number < trial.told]
        with reading(self.url):
            for other in others:
                for rung, mark in marks_of(other).items():
                    marks[rung] = (*marks.get(rung, ()), mark)
        return Before(trial.front, marks, trial.told)

    def claim(self, number: int, worker: str) -> bool:
        """Whether the trial is ours now, and nobody else's."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        try:
            with _told(self.url):
                if not self._storage.set_trial_state_values(self._ids[number], TrialState.RUNNING):
                    return False
                self._storage.set_trial_user_attr(self._ids[number], "worker", worker)
        except UpdateFinishedTrialError:  # somebody else has even finished it
            return False
        return True

    def requeue(self, number: int) -> bool:
        """Whether somebody else may now measure a trial whose worker has died."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        try:
            with _told(self.url):
                # whoever claims it and dies before it has signed has not left it to another
                self._storage.set_trial_user_attr(self._ids[number], "worker", None)
                self._storage.set_trial_state_values(self._ids[number], TrialState.WAITING)
        except UpdateFinishedTrialError:  # it was not dead, only slow
            return False
        return True

    def finish(self, out: Outcome, *, urgent: bool = True) -> bool:
        """Whether the outcome was taken; another's may have come first."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        values = None if out.values is None else list(out.values)
        about, state = attributes_of(out), TrialState[out.state]
        try:
            with _told(self.url):
                self._storage.finish(self._ids[out.number], about, state, values, urgent=urgent)
        except UpdateFinishedTrialError:
            return False
        return True

    def _trial(
        self,
        number: int,
        chosen: Chosen,
        notes: Mapping[str, Any],
        state: str,
        about: Outcome | dict[str, Any],
    ) -> FrozenTrial:
        from optuna.trial import FrozenTrial, TrialState

        params, distributions = stored(self.choices, chosen)
        attributes: dict[str, Any] = {}
        start, values, end = datetime.datetime.now(), None, None
        if isinstance(about, Outcome):
            attributes |= attributes_of(about)
            start = datetime.datetime.fromtimestamp(about.started)
            end = start + datetime.timedelta(seconds=about.seconds)
            values = None if about.values is None else list(about.values)
        else:
            attributes |= about
        return FrozenTrial(
            number=number,
            state=TrialState[state],
            value=None,
            values=values,
            datetime_start=None if state == "WAITING" else start,
            datetime_complete=end,
            params=params,
            distributions=distributions,
            user_attrs=attributes,
            system_attrs=dict(notes),
            intermediate_values={},
            trial_id=-1,
        )

    def _stored(self, trial: FrozenTrial) -> Stored:
        finished = trial.state.is_finished()
        with reading(self.url):
            return Stored(
                trial.number,
                self.choices.decoded(trial.params),
                trial.system_attrs,
                outcome_of(trial, self._objectives) if finished else None,
                trial.state.name == "WAITING",
                trial.user_attrs.get("worker", ""),
                tuple(tuple(costs) for costs in trial.user_attrs.get("front", ())),
                trial.user_attrs.get("last", -1),
                trial.user_attrs.get("told", 0),
            )


class _Designs(Mapping[int, Chosen]):
    """Designs as the numbers that were suggested, until somebody looks at one."""

    def __init__(
        self,
        decoded: Callable[[Mapping[str, float]], Chosen],
        numbers: dict[int, dict[str, float]],
    ) -> None:
        self._decoded, self._numbers = decoded, numbers

    def __getitem__(self, number: int) -> Chosen:
        return self._decoded(self._numbers[number])

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)
