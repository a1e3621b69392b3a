"""Read a search that has not written its search.json yet from its study."""

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


class NoTrialsYet(ConfigError):
    """Raised for a search without trials; `what` says why, without advice."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(f"{what}; {advice}")
        self.what = what


def read_running(folder: Path) -> SearchRecord | None:
    """Return the search that runs or was killed in a folder; None if it has just ended."""
    running, note = is_running(folder), read_note(folder)
    if note is None:
        return None
    if note.study is None:
        raise _without_trials(folder, running=running)
    if note.storage is None:
        raise ConfigError(
            f"the study of the search in {folder} is in a database with a password, which "
            f"is not stored; run ch report after the search has ended"
        )
    return read_study(note.storage, note, folder, running=running)


def _without_trials(folder: Path, *, running: bool) -> NoTrialsYet:
    search = f"the search in {folder}"
    if running:
        why = "has no trials yet, as its parent is being trained"
        return NoTrialsYet(f"{search} {why}", "make the report later, or follow it with --live")
    advice = f"continue it with `{called()} search … --resume`"
    return NoTrialsYet(f"{search} was cut off before its first trial", advice)


def read_study(url: str, note: Note, folder: Path, *, running: bool) -> SearchRecord:
    """Return the search of a study as it is now."""
    from chop.actions.search.results.files import Results
    from chop.actions.search.store.errors import reading_errors
    from chop.actions.search.store.study_store import StudyStore, read_about

    study = str(note.study)
    about = read_about(url, study)
    if not about:
        raise _without_trials(folder, running=running)
    with reading_errors(url):
        objectives, choices = _objectives(about), _choices(about["space"]["choices"])
        store = StudyStore(url, study, objectives.directions, choices, write=False)
        store.close()
        baseline = store.attribute("baseline")
        results = Results(store, objectives, config_of=lambda chosen: {})
        facts: dict[str, Any] = {"command": note.command, "started": note.started}
        facts |= {"baseline": baseline} if isinstance(baseline, dict) else {}
        facts |= {"study": study, "storage": url, "state": "running" if running else "cut"}
        return record_of(results, {**about, **facts})


def _objectives(about: Mapping[str, Any]) -> Objectives:
    from chop.actions.search.metrics.objectives import Constraint, Objective, Objectives

    members = tuple(Objective(**objective) for objective in about["objectives"])
    limits = [Constraint.parse(text, "constraints") for text in about.get("constraints") or []]
    return Objectives(members, about.get("summed"), tuple(limits))


def _choices(stored: Mapping[str, Any]) -> Choices:
    """Return the choices of a space as a study stores them: not which keys depend on others."""
    from chop.actions.search.space.choices import Choices, OneOf, Parameter, Range

    class Independent(Choices):
        def decoded(self, numbers: Mapping[str, float]) -> dict[str, Any]:
            known = [p for p in self.parameters if p.key in numbers]
            return {p.key: p.choice.value(numbers[p.key]) for p in known}

    def choice(table: Any) -> OneOf | Range:
        if isinstance(table, list):
            return OneOf(tuple(table))
        return Range(table["min"], table["max"], table.get("step"), bool(table.get("log")))

    return Independent([Parameter(key, choice(table)) for key, table in stored.items()])
