"""How an outcome is kept in a trial of Optuna's, and read back from one that anybody may change."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, Strict, ValidationError

from chop.actions.search.outcome import Outcome
from chop.actions.search.rungs import Mark
from chop.actions.search.sharing import interned

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

OURS = "mase"  # the user attribute with what Optuna has no place for
LATEST = 1e11  # seconds since 1970: the largest moment that a calendar of Python's has


def attributes_of(out: Outcome) -> dict[str, Any]:
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


def outcome_of(trial: FrozenTrial, objectives: int) -> Outcome:
    """What has come of a finished trial; a ValueError if no search has written that."""
    _check(trial, objectives)
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
        marks=marks_of(trial),
        started=ours.get("started", began.timestamp() if began else 0.0),
        seconds=ours.get("seconds", 0.0),
        worker=ours.get("worker", ""),
        error=ours.get("error"),
    )


def marks_of(trial: FrozenTrial) -> dict[int, Mark]:
    """What a trial had come to at each rung."""
    stored = trial.user_attrs.get(OURS, {}).get("rungs", {})
    return {
        int(rung): Mark(mark["metrics"], mark["costs"] and tuple(mark["costs"]))
        for rung, mark in stored.items()
    }


Number = Annotated[float, Strict()]  # text that reads like a number is not one
Metrics = dict[str, float | str | None]


class _Mark(BaseModel):
    metrics: Metrics
    costs: list[Number] | None


class _Ours(BaseModel):
    violations: list[Number] = []
    layers: dict[str, dict[str, float | str | None]] = {}
    rungs: dict[int, _Mark] = {}
    started: Number = Field(0.0, ge=0, le=LATEST)
    seconds: Number = Field(0.0, allow_inf_nan=False)
    worker: str = ""
    error: str | None = None


class _Kept(BaseModel):
    """What `attributes_of` writes."""

    software_metrics: Metrics = {}
    hardware_metrics: Metrics = {}
    scaled_metrics: Metrics = {}
    mase: _Ours | None = None


def _check(trial: FrozenTrial, objectives: int) -> None:
    """Refuse attributes of other kinds than ours, and values that do not fit the study."""
    try:
        _Kept.model_validate(trial.user_attrs)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"trial {trial.number}, {place}: {first['msg']}") from error
    numbers = [trial.number, *(trial.values or ())]
    if not all(isinstance(number, int | float) for number in numbers):
        raise ValueError(f"trial {trial.number!r:.20} has a number or a value that is not a number")
    count = len(trial.values or ())
    if count != objectives and (count or trial.state.name == "COMPLETE"):
        raise ValueError(f"trial {trial.number} has {count} values, not {objectives}")
