"""The description of a search: a study can only be resumed by the same search."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from chop.actions.config import ConfigError
from chop.actions.search.metrics.identity import fingerprints_of, weights_of
from chop.actions.search.results.files import plain
from chop.actions.search.space.calibration import calibration_of
from chop.actions.search.space.choices import Choice, Choices, OneOf, shown_size
from chop.actions.search.spec.settings import GradientTable
from chop.actions.search.spec.study_spec import StudySpec
from chop.actions.search.store.study_store import StudyStore
from chop.passes.graph.transforms.quantize.marks import CALIBRATED

NEW_NAME = "name a new study with --study"
Path = tuple[str, ...]  # keys of tables within tables
LONGEST = 10**300  # a number that every JSON reader accepts
# in a study that is resumed; the samples follow from runners and data, which are compared
MAY_DIFFER = {"dataset_title", "samples", "simulated"}


def description_of(spec: StudySpec) -> dict[str, Any]:
    """Return what identifies a search, as its study and search.json store it."""
    data, settings, space = spec.parent.data_module, spec.settings, spec.space
    info, stopping, objectives = data.dataset_info, settings.early_stopping, settings.objectives
    fixed = getattr(space, "fixed", {})
    description: dict[str, Any] = plain(
        {
            "model": spec.model_name,
            "weights": weights_of(spec.parent.graph.model),
            "front_end": spec.parent.graph.front_end,
            "dataset": data.name,
            "dataset_title": getattr(info, "title", data.name),
            "simulated": bool(getattr(info, "simulated", False)),
            "fingerprints": fingerprints_of(data),
            "batch_size": data.batch_size,
            "seed": spec.parent.seed,
            "sampler": settings.sampler,
            "sampler_options": settings.sampler_options,
            "uniform_first": settings.uniform_first,
            "in_flight": settings.in_flight,
            "population": spec.group_size,
            "threads": settings.threads,
            "space": {
                "name": space.name,
                "size": _written_size(space.choices.size),
                "choices": {p.key: p.choice.plain() for p in space.choices.open},
                **({"options": fixed} if fixed else {}),
            },
            "samples": {m: n for r in spec.runners for m, n in r.samples_by_metric().items()},
            "runners": _runners(spec),
            "early_stopping": stopping and stopping.model_dump(),
            "honour_directions": objectives.honour_directions,
            "objectives": [dataclasses.asdict(objective) for objective in objectives.members],
            "summed": objectives.summed,
            "constraints": [str(constraint) for constraint in objectives.constraints],
        }
    )
    single = {p.key: p.choice.plain() for p in space.choices.parameters if p.choice.count == 1}
    calibrated = _has_calibrated(space.choices) and calibration_of(spec.parent.graph)
    return (
        description
        | {"single_choices": plain(single)}
        | ({"calibration": plain(calibrated)} if calibrated else {})
        | ({"gradient": _gradient(settings.gradient)} if settings.gradient else {})
    )


def _gradient(how: GradientTable) -> Any:
    """Return how the front is trained; the seed is that of the search."""
    return plain({**dataclasses.asdict(how.front), "seed": None, "teacher": how.teacher})


def _has_calibrated(choices: Choices) -> bool:
    return any(CALIBRATED in list(_values(p.choice)) for p in choices.parameters)


def _values(choice: Choice) -> Iterable[Any]:
    return choice.values if isinstance(choice, OneOf) else ()


def _runners(spec: StudySpec) -> dict[str, dict[str, Any]]:
    """Return the options of each runner, with the defaults that depend on other options."""
    return {
        cls.name: {**cls.dependent_defaults(options), **options}
        for cls, options in spec.settings.runners
    }


def _written_size(size: int | None) -> int | str | None:
    """Return the size of a space as a number or text that JSON can hold."""
    return size if size is None or size < LONGEST else shown_size(size)


def check_same(store: StudyStore, about: Mapping[str, Any], fix: str = NEW_NAME) -> None:
    """Refuse a study of a different search."""
    stored = store.about
    compared = [key for key in {**about, **stored} if key not in MAY_DIFFER]
    differ = [key for key in compared if stored.get(key) != about.get(key)] if stored else []
    if differ:
        path, theirs, ours = _difference((differ[0],), stored.get(differ[0]), about.get(differ[0]))
        raise ConfigError(
            f"the study {store.study!r} in {store.shown} belongs to a different search: "
            f"its {'.'.join(path)} is {_shown(theirs)}, not {_shown(ours)}; {fix}"
        )


def _difference(path: Path, theirs: Any, ours: Any) -> tuple[Path, Any, Any]:
    """Return the path of the first difference, and both values there."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in [*theirs, *ours]:
            one, other = (table.get(key, "nothing") for table in (theirs, ours))
            if one != other:
                return _difference((*path, key), one, other)
    return path, theirs, ours


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 100 else text[:99] + "…"
