"""A search that has not written its search.json yet, read from its study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError
from chop.actions.invocation import called
from chop.actions.search.results.page.record import SearchRecord, record_of
from chop.actions.search.store.running import Note, is_running, read_note

if TYPE_CHECKING:
    from chop.actions.search.metrics.objectives import Objectives
    from chop.actions.search.space.choices import Choices

__all__ = ["read_running", "read_study"]


def read_running(folder: Path) -> SearchRecord | None:
    """The search that runs in a folder, or was killed there; None if it has ended meanwhile."""
    running, note = is_running(folder), read_note(folder)
    if note is None:
        return None
    if note.study is None:
        raise ConfigError(_without_trials(folder, running=running))
    if note.storage is None:
        raise ConfigError(
            f"the study of the search in {folder} is in a database with a password, which "
            f"is not stored; run ch report after the search has ended"
        )
    return read_study(note.storage, note, folder, running=running)


def _without_trials(folder: Path, *, running: bool) -> str:
    if running:
        return (
            f"the search in {folder} has no trials yet, as its parent is being trained; make the "
            f"report later"
        )
    return (
        f"the search in {folder} was cut off before its first trial; go on with it by "
        f"`{called()} search … --resume`"
    )


def read_study(url: str, note: Note, folder: Path, *, running: bool) -> SearchRecord:
    """What a study has come to so far."""
    from chop.actions.search.results.files import Results
    from chop.actions.search.store.errors import reading_errors
    from chop.actions.search.store.study_store import StudyStore, read_about

    study = str(note.study)
    about = read_about(url, study)
    if not about:
        raise ConfigError(_without_trials(folder, running=running))
    with reading_errors(url):
        goals, choices = _goals(about), _choices(about["space"]["choices"])
        store = StudyStore(url, study, goals.directions, choices, write=False)
        store.close()
        results = Results(store, goals, config_of=lambda chosen: {})
        facts = {"command": note.command, "started": note.started}
        facts |= {"study": study, "storage": url, "state": "running" if running else "cut"}
        return record_of(results, {**about, **facts})


def _goals(about: Mapping[str, Any]) -> Objectives:
    from chop.actions.search.metrics.objectives import Constraint, Objective, Objectives

    constraints = about.get("constraints") or []
    return Objectives(
        tuple(Objective(**goal) for goal in about["objectives"]),
        about.get("summed"),
        tuple(Constraint.parse(text, "constraints") for text in constraints),
    )


def _choices(written: Mapping[str, Any]) -> Choices:
    """The choices of a space as far as a study knows them: not which keys depend on others."""
    from chop.actions.search.space import choices

    class Known(choices.Choices):
        def decoded(self, numbers: Mapping[str, float]) -> dict[str, Any]:
            there = [p for p in self.parameters if p.key in numbers]
            return {p.key: p.choice.value(numbers[p.key]) for p in there}

    return Known([choices.Parameter(key, _choice(value)) for key, value in written.items()])


def _choice(written: Any) -> Any:
    from chop.actions.search.space.choices import OneOf, Range

    if isinstance(written, list):
        return OneOf(tuple(written))
    step, log = written.get("step"), bool(written.get("log"))
    return Range(written["min"], written["max"], step, log)
