"""What a search is about: a study can only be resumed by the same search."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chop.actions.config import ConfigError
from chop.actions.search.metrics.identity import fingerprints_of, weights_of
from chop.actions.search.results.files import plain
from chop.actions.search.space.choices import shown_size
from chop.actions.search.spec.settings import Settings
from chop.actions.search.store.study_store import StudyStore

if TYPE_CHECKING:
    from chop.actions.search.run.worker import Worker
    from chop.actions.search.spec.problem import Problem

NEW_NAME = "name a new study with --study"
LONGEST = 10**300  # a number that every JSON reader accepts
# what has to be equal in a study that is resumed
FIXED = (
    "model",
    "weights",
    "dataset",
    "fingerprints",
    "batch_size",
    "space",
    "runners",
    "objectives",
    "constraints",
    "summed",
    "honour_directions",
    "early_stopping",
    "sampler",
    "sampler_options",
    "seed",
    "in_flight",
    "population",
    "threads",
)


def described_search(
    problem: Problem, settings: Settings, worker: Worker, about: Mapping[str, Any]
) -> dict[str, Any]:
    """What the search is about; a resumed one has to be about the same."""
    data = problem.data_module
    info, stopping = data.dataset_info, settings.early_stopping
    fixed = getattr(worker.space, "fixed", {})
    found: dict[str, Any] = plain(
        {
            "model": about.get("model"),
            "weights": weights_of(problem.graph.model),
            "dataset": data.name,
            "dataset_title": getattr(info, "title", data.name),
            "simulated": bool(getattr(info, "simulated", False)),
            "fingerprints": fingerprints_of(data),
            "batch_size": data.batch_size,
            "seed": problem.seed,
            "sampler": settings.sampler,
            "sampler_options": settings.sampler_options,
            "in_flight": settings.in_flight,
            "population": worker.group,
            "threads": settings.threads,
            "space": {
                "name": worker.space.name,
                "size": _written_size(worker.space.choices.size),
                "choices": {p.key: p.choice.plain() for p in worker.space.choices.open},
                **({"options": fixed} if fixed else {}),
            },
            "runners": {cls.name: dict(options) for cls, options in settings.runners},
            "early_stopping": stopping and dataclasses.asdict(stopping),
            "honour_directions": settings.objectives.honour_directions,
            "objectives": [
                dataclasses.asdict(objective) for objective in settings.objectives.members
            ],
            "summed": settings.objectives.summed,
            "constraints": [str(c) for c in settings.objectives.constraints],
        }
    )
    return found


def _written_size(size: int | None) -> int | str | None:
    """A size as a file can hold it."""
    return size if size is None or size < LONGEST else shown_size(size)


def check_same(store: StudyStore, about: Mapping[str, Any], fix: str = NEW_NAME) -> None:
    """Refuse to mix two searches."""
    before = store.about
    differ = [key for key in FIXED if key in before and before[key] != about[key]]
    if differ:
        key, theirs, ours = _difference(differ[0], before[differ[0]], about[differ[0]])
        raise ConfigError(
            f"the study {store.study!r} in {store.shown} belongs to a different search: "
            f"its {key} is {_shown(theirs)}, not {_shown(ours)}; {fix}"
        )


def _difference(path: str, theirs: Any, ours: Any) -> tuple[str, Any, Any]:
    """The first place in which two values differ, and what is there."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in [*theirs, *ours]:
            one, other = (table.get(key, "nothing") for table in (theirs, ours))
            if one != other:
                return _difference(f"{path}.{key}", one, other)
    return path, theirs, ours


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 100 else text[:99] + "…"
