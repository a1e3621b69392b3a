"""One study: its trials by number, and the attributes of the search as a whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError
from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.samplers.base import Chosen
from chop.actions.search.samplers.optuna import quiet
from chop.actions.search.space.choices import Choices
from chop.actions.search.store.errors import (
    MissingStudy,
    StudyInUse,
    reading_errors,
    storage_errors,
)
from chop.actions.search.store.journal import JournalBackend
from chop.actions.search.store.rows import StoredTrial, TrialRow, stored_trial
from chop.actions.search.store.urls import parse_url
from chop.system.redaction import redacted

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from chop.actions.search.store.database import DatabaseBackend


def open_backend(url: str, *, write: bool) -> JournalBackend | DatabaseBackend:
    """Open the storage at a URL; a path, or `journal:///path`, is a journal file."""
    kind, path = parse_url(url)
    if kind == "journal":
        assert path is not None
        return JournalBackend(path, write=write)
    from chop.actions.search.store.database import DatabaseBackend

    return DatabaseBackend(url, path, write=write)


class StudyStore:
    """A study that this process alone writes, or one that it only reads.

    Finished trials are kept in memory as well, without what all of them share.
    """

    def __init__(
        self,
        url: str,
        study: str,
        directions: tuple[str, ...],
        choices: Choices,
        *,
        write: bool = True,
        create: bool = True,
    ) -> None:
        create = create and write
        self.url, self.study, self.choices = url, study, choices
        self._directions = directions
        self.outcomes: dict[int, Outcome] = {}
        self._designs: dict[int, tuple[float | None, ...]] = {}
        self._notes: dict[int, Mapping[str, Any]] = {}
        _check_exists(url, study, create)
        with reading_errors(url), quiet():
            self._backend = open_backend(url, write=write)
        try:
            with reading_errors(url), quiet():
                self._open_study(write, create)
        except BaseException:
            self.close()
            raise

    def _open_study(self, write: bool, create: bool) -> None:
        storage = self._backend.storage
        self._study_id = self._find_or_create(storage, create)
        if write and not self._backend.lock(self._study_id):
            raise StudyInUse(self.url, self.study)
        stored = [d.name.lower() for d in storage.get_study_directions(self._study_id)]
        if stored != list(self._directions):
            raise ConfigError(
                f"the study {self.study!r} in {self.shown} has {len(stored)} objectives "
                f"({', '.join(stored)}), unlike this file; choose a new study name with --study"
            )
        trials = storage.get_all_trials(self._study_id, deepcopy=False)
        self._stored = [self._kept(trial) for trial in sorted(trials, key=lambda t: t.number)]
        self._attributes = storage.get_study_user_attrs(self._study_id)
        if write:
            unfinished = [t.number for t in trials if not t.state.is_finished()]
            of = storage.get_trial_id_from_study_id_trial_number
            self._backend.begin(self._study_id, ((n, of(self._study_id, n)) for n in unfinished))

    def _find_or_create(self, storage: BaseStorage, create: bool) -> int:
        """Return the id of the study."""
        from optuna.exceptions import DuplicatedStudyError
        from optuna.study import StudyDirection

        with contextlib.suppress(KeyError):
            return storage.get_study_id_from_name(self.study)
        if create:
            directions = [StudyDirection[direction.upper()] for direction in self._directions]
            with contextlib.suppress(DuplicatedStudyError):  # another process was faster
                return storage.create_new_study(directions, self.study)
        return _study_id(storage, self.url, self.study)

    def _kept(self, trial: FrozenTrial) -> StoredTrial:
        """Return a trial that was read, and keep it in memory if it is finished."""
        stored = stored_trial(trial, self.choices, len(self._directions))
        if stored.outcome is not None:
            self._keep(stored.chosen, stored.notes, stored.outcome)
        return stored

    def _keep(self, chosen: Chosen, notes: Mapping[str, Any], outcome: Outcome) -> None:
        numbers = self.choices.encoded(chosen)
        self.outcomes[outcome.number] = outcome
        self._designs[outcome.number] = tuple(numbers.get(p.key) for p in self.choices.open)
        if notes:
            self._notes[outcome.number] = notes

    # --- the search as a whole

    @property
    def shown(self) -> str:
        """The URL of the storage without its password."""
        return str(redacted(self.url))

    @property
    def about(self) -> Mapping[str, Any]:
        """The description of the search; empty if it was killed before it could store that."""
        return checked_about(self._attributes, self.url)

    def attribute(self, key: str) -> Any:
        """Return a fact about the search as a whole, None if it is not stored."""
        return self._attributes.get(key)

    def set_attribute(self, key: str, value: Any) -> None:
        """Store a fact about the search as a whole."""
        with storage_errors(self.url):
            self._backend.storage.set_study_user_attr(self._study_id, key, value)
        self._attributes = {**self._attributes, key: value}

    def close(self) -> None:
        """Close files and connections, and release the lock."""
        self._backend.close()

    # --- trials

    def read_trials(self) -> list[StoredTrial]:
        """Return the trials that were stored when the study was opened, by ascending number."""
        return self._stored

    @property
    def designs(self) -> Mapping[int, Chosen]:
        """The designs of the finished trials, by number."""
        return _Designs(self.choices, self._designs)

    def reserve(self, number: int, chosen: Chosen, notes: Mapping[str, Any]) -> None:
        """Write a trial that is not finished, so that later numbers can be written."""
        with storage_errors(self.url):
            self._backend.append(TrialRow.of(number, chosen, notes, None, self.choices))

    def add(
        self, chosen: Chosen, notes: Mapping[str, Any], outcome: Outcome, *, reserved: bool = False
    ) -> None:
        """Write a finished trial, which has the next number unless it was reserved."""
        write = self._backend.finish if reserved else self._backend.append
        with storage_errors(self.url):
            write(TrialRow.of(outcome.number, chosen, notes, outcome, self.choices))
        self._keep(chosen, notes, outcome)

    def frozen_trials(self) -> Iterator[FrozenTrial]:
        """Yield the finished trials as Optuna represents them."""
        designs = self.designs
        for number, outcome in sorted(self.outcomes.items()):
            notes = self._notes.get(number, {})
            yield TrialRow.of(number, designs[number], notes, outcome, self.choices).frozen()


class _Designs(Mapping[int, Chosen]):
    """Designs as the numbers that were suggested, decoded when one is looked up."""

    def __init__(self, choices: Choices, numbers: dict[int, tuple[float | None, ...]]) -> None:
        self._choices, self._numbers = choices, numbers
        self._keys = [parameter.key for parameter in choices.open]

    def __getitem__(self, number: int) -> Chosen:
        pairs = zip(self._keys, self._numbers[number], strict=True)
        return self._choices.decoded({key: value for key, value in pairs if value is not None})

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def _check_exists(url: str, study: str, create: bool) -> None:
    """Refuse a file that does not exist or is empty, which opening it would create or fill."""
    _, path = parse_url(url)
    if create or path is None:
        return
    if not path.exists() or (path.is_file() and path.stat().st_size == 0):
        raise MissingStudy(url, study)


def read_about(url: str, study: str) -> Mapping[str, Any]:
    """Return the description of the search of a study, without its trials."""
    _check_exists(url, study, create=False)
    with (
        reading_errors(url),
        quiet(),
        contextlib.closing(open_backend(url, write=False)) as backend,
    ):
        storage = backend.storage
        attributes = storage.get_study_user_attrs(_study_id(storage, url, study))
        return checked_about(attributes, url)


def _study_id(storage: BaseStorage, url: str, study: str) -> int:
    try:
        return storage.get_study_id_from_name(study)
    except KeyError:
        raise MissingStudy(url, study) from None


def checked_about(attributes: Mapping[str, Any], url: str) -> Mapping[str, Any]:
    """Return the attribute `about` of a study, which must be a table."""
    with reading_errors(url):
        about = attributes.get("about", {})
        if not isinstance(about, dict):
            raise TypeError(f"the attribute 'about' must be a table, not {type(about).__name__}")
        runners = about.get("runners", {})
        tables = [runners, *(runners.values() if isinstance(runners, dict) else ())]
        if not all(isinstance(table, dict) for table in tables):
            raise TypeError("the runners in the attribute 'about' must be tables")
        return about
