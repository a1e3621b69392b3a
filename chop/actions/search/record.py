"""A study in a storage of Optuna's: a journal file, SQLite, PostgreSQL; nothing told is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.options import ConfigError
from chop.actions.search.goals import Costs
from chop.actions.search.outcome import Outcome
from chop.actions.search.rungs import Before, Mark
from chop.actions.search.search_space.choices import Choices
from chop.actions.search.sharing import interned
from chop.actions.search.strategies.base import Chosen
from chop.actions.search.strategies.optuna import quiet, stored
from chop.actions.search.urls import STORAGES, advice_for, check_inside, for_sqlalchemy, reason_of
from chop.redaction import redacted

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from chop.actions.search.database import Database
    from chop.actions.search.journal import Journal

    Storage = Journal | Database

logger = logging.getLogger(__name__)

OURS = "mase"  # the user attribute with what Optuna has no place for
KINDS = ("journal", "sqlite", "postgresql")
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


def open_storage(url: str, *, create: bool = True) -> Storage:
    """The storage at a URL; a path, or `journal:///path`, is a journal file."""
    scheme, path = _parts(url)
    if not create and path is not None and not path.exists():
        raise ConfigError(f"there is no study in {path}; search first, or correct --storage")
    with _told(url), quiet():
        if scheme == "journal":
            from chop.actions.search.journal import open_journal

            assert path is not None
            return open_journal(path)
        found = _database(url)
        if create:
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
    return scheme, Path(file) if scheme == "sqlite" and file not in ("", ":memory:") else None


def check_url(url: str, inside: Collection[Path] = ()) -> None:
    """Refuse what is no storage, whatever is in it; a file has to be `inside` one of the folders.

    Without any folders it may be anywhere.
    """
    scheme, path = _parts(url)
    if path is not None and inside:
        check_inside(path, inside)
    if scheme == "postgresql":
        for_sqlalchemy(url)
    if path is not None and path.is_dir():
        raise ConfigError(f"--storage {redacted(url)} is a folder; name a file in it")
    if path is not None and url.startswith("sqlite") and not path.absolute().parent.is_dir():
        raise ConfigError(
            f"--storage {redacted(url)}: there is no folder {path.parent}; make it first"
        )


def _database(url: str) -> Database:
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import ArgumentError

    from chop.actions.search.database import Database

    arguments: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith("sqlite"):
        arguments["connect_args"] = {"timeout": SQLITE_PATIENCE}
    try:
        return Database(RDBStorage(for_sqlalchemy(url), engine_kwargs=arguments))
    except ImportError as error:
        raise ConfigError(
            f"--storage {redacted(url)}: its driver is not installed; "
            f'.venv/bin/pip install -c constraints.txt -e ".[postgres]"'
        ) from error
    except ArgumentError as error:
        raise ConfigError(
            f"--storage {redacted(url)} is no storage ({reason_of(error, url)}); write {STORAGES}"
        ) from error


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
        reason = reason_of(error, url)
        said = f"the study in {redacted(url)} cannot be read or written: {reason}"
        raise StorageError(f"{said}; {advice_for(reason)}") from error


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
    ) -> None:
        import optuna
        from optuna.study import StudyDirection

        self.url, self.study, self.choices = url, study, choices
        self._storage = open_storage(url, create=create)
        ways = [StudyDirection[d.upper()] for d in directions]
        with _told(url), quiet():
            try:
                self._id = self._storage.get_study_id_from_name(study)
                self.existed = True
            except KeyError:
                if not create:
                    raise ConfigError(
                        f"there is no study {study!r} in {redacted(url)}; name one by "
                        f"--study, or search first"
                    ) from None
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

    @classmethod
    def found(cls, url: str, study: str) -> Record | None:
        """The study of that name, to look at; None if there is none."""
        storage = open_storage(url)
        with _told(url):
            try:
                number = storage.get_study_id_from_name(study)
            except KeyError:
                storage.close()
                return None
        record = cls.__new__(cls)
        record.url, record.study, record.choices = url, study, Choices([])
        record._storage, record._id, record.existed, record._ids = storage, number, True, {}
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
        with _told(self.url):
            return self._storage.get_study_user_attrs(self._id)

    def note(self, key: str, value: Any) -> None:
        with _told(self.url):
            self._storage.set_study_user_attr(self._id, key, value)

    # --- trials

    def trials(self) -> list[Stored]:
        """All trials in the order of their numbers."""
        return [self._stored(trial) for trial in self.frozen()]

    def outcomes(self) -> dict[int, Outcome]:
        """What has come of the finished trials, by their numbers."""
        return {t.number: _outcome(t) for t in self.frozen() if t.state.is_finished()}

    def designs(self) -> Mapping[int, Chosen]:
        """The designs of all trials, by their numbers."""
        return _Designs(self.choices, {t.number: t.params for t in self.frozen()})

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
        return [_outcome(trial) for trial in there if trial.state.is_finished()]

    def frozen(self) -> list[FrozenTrial]:
        """The trials as Optuna has them."""
        with _told(self.url):
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
        for other in self.frozen() if trial.told else ():
            if other.number < trial.told:
                for rung, mark in _marks(other).items():
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
        about, state = _attributes(out), TrialState[out.state]
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
            attributes |= _attributes(about)
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
        return Stored(
            trial.number,
            self.choices.decoded(trial.params),
            trial.system_attrs,
            _outcome(trial) if finished else None,
            trial.state.name == "WAITING",
            trial.user_attrs.get("worker", ""),
            tuple(tuple(costs) for costs in trial.user_attrs.get("front", ())),
            trial.user_attrs.get("last", -1),
            trial.user_attrs.get("told", 0),
        )


class _Designs(Mapping[int, Chosen]):
    """Designs as the numbers that were suggested, until somebody looks at one."""

    def __init__(self, choices: Choices, numbers: dict[int, dict[str, float]]) -> None:
        self._choices, self._numbers = choices, numbers

    def __getitem__(self, number: int) -> Chosen:
        return self._choices.decoded(self._numbers[number])

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def _attributes(out: Outcome) -> dict[str, Any]:
    """What of an outcome goes beside its values."""
    ours = {
        "violations": list(out.violations),
        "layers": dict(out.layers),
        "rungs": {str(rung): dataclasses.asdict(mark) for rung, mark in out.marks.items()},
        "started": out.started,
        "seconds": out.seconds,
        "worker": out.worker,
        "error": out.error,
    }
    return {
        "software_metrics": interned(out.software),
        "hardware_metrics": interned(out.hardware),
        "scaled_metrics": interned(out.scaled),
        OURS: {key: value for key, value in ours.items() if value},
    }


def _outcome(trial: FrozenTrial) -> Outcome:
    attributes = trial.user_attrs
    ours = attributes.get(OURS, {})
    began = trial.datetime_start
    return Outcome(
        trial.number,
        trial.state.name,  # type: ignore[arg-type]
        values=None if trial.values is None else tuple(trial.values),
        violations=tuple(ours.get("violations", ())),
        software=attributes.get("software_metrics", {}),
        hardware=attributes.get("hardware_metrics", {}),
        scaled=attributes.get("scaled_metrics", {}),
        layers=ours.get("layers", {}),
        marks=_marks(trial),
        started=ours.get("started", began.timestamp() if began else 0.0),
        seconds=ours.get("seconds", 0.0),
        worker=ours.get("worker", ""),
        error=ours.get("error"),
    )


def _marks(trial: FrozenTrial) -> dict[int, Mark]:
    """What a trial had come to at each rung."""
    stored = trial.user_attrs.get(OURS, {}).get("rungs", {})
    return {
        int(rung): Mark(mark["metrics"], mark["costs"] and tuple(mark["costs"]))
        for rung, mark in stored.items()
    }
