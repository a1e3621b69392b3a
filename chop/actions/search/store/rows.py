"""Trials as storages hold them, and as a search uses them."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, Strict, ValidationError

from chop.actions.search.metrics.base import RungScore
from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.samplers.base import Chosen
from chop.actions.search.samplers.optuna import encoded
from chop.actions.search.space.choices import Choices

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

LATEST = 1e11  # seconds since 1970: the largest moment that Python's calendar has


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """A trial read from a storage; one that was not finished has no outcome."""

    number: int
    chosen: Chosen
    notes: Mapping[str, Any]  # what its sampler keeps with the trial
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial as it is written: plain values under Optuna's names."""

    number: int
    state: str
    params: Mapping[str, float]
    distributions: Mapping[str, BaseDistribution]
    system_attrs: Mapping[str, Any]
    user_attrs: Mapping[str, Any]
    values: tuple[float, ...] | None
    started: datetime.datetime
    completed: datetime.datetime | None

    @classmethod
    def of(
        cls,
        number: int,
        chosen: Chosen,
        notes: Mapping[str, Any],
        outcome: Outcome | None,
        space: Choices,
    ) -> TrialRow:
        """Return the row of a trial, which is still running if it has no outcome."""
        design = encoded(space, chosen)
        if outcome is None:
            now = datetime.datetime.now(datetime.UTC)
            return cls(number, "RUNNING", *design, notes, {}, None, now, None)
        attributes = outcome_attributes(outcome)
        started = datetime.datetime.fromtimestamp(outcome.started, datetime.UTC)
        ended = started + datetime.timedelta(seconds=outcome.seconds)
        return cls(
            number, outcome.state, *design, notes, attributes, outcome.values, started, ended
        )

    def frozen(self) -> FrozenTrial:
        """Return the trial as Optuna represents it in memory."""
        from optuna.trial import FrozenTrial, TrialState

        times = (self.started, self.completed)  # Optuna holds local time, without a time zone
        start, complete = (time and time.astimezone().replace(tzinfo=None) for time in times)
        return FrozenTrial(
            number=self.number,
            state=TrialState[self.state],
            value=None,
            values=None if self.values is None else list(self.values),
            datetime_start=start,
            datetime_complete=complete,
            params=dict(self.params),
            distributions=dict(self.distributions),
            user_attrs=dict(self.user_attrs),
            system_attrs=dict(self.system_attrs),
            intermediate_values={},
            trial_id=self.number,
        )


def stored_trial(trial: FrozenTrial, space: Choices, objectives: int) -> StoredTrial:
    """Return a trial of Optuna's as a search uses it."""
    outcome = read_outcome(trial, objectives) if trial.state.is_finished() else None
    return StoredTrial(trial.number, space.decoded(trial.params), trial.system_attrs, outcome)


def outcome_attributes(outcome: Outcome) -> dict[str, Any]:
    """Return what a storage holds of an outcome besides its values."""
    ours = {
        "violations": list(outcome.violations),
        "rungs": {str(rung): dataclasses.asdict(score) for rung, score in outcome.rungs.items()},
        "started": outcome.started,
        "seconds": outcome.seconds,
        "worker": outcome.worker,
        "error": outcome.error,
    }
    return {
        "software_metrics": dict(outcome.software),
        "hardware_metrics": dict(outcome.hardware),
        "scaled_metrics": dict(outcome.scaled),
        "mase": {key: value for key, value in ours.items() if value},
    }


def read_outcome(trial: FrozenTrial, objectives: int) -> Outcome:
    """Return the outcome of a finished trial; refuse one that no search has written."""
    attributes, ours = trial.user_attrs, _checked(trial, objectives)
    began = trial.datetime_start
    return Outcome(
        trial.number,
        trial.state.name,  # type: ignore[arg-type]
        values=None if trial.values is None else tuple(trial.values),
        violations=ours.violations,
        software=interned(attributes.get("software_metrics", {})),
        hardware=interned(attributes.get("hardware_metrics", {})),
        scaled=interned(attributes.get("scaled_metrics", {})),
        rungs={rung: RungScore(s.metrics, s.costs) for rung, s in ours.rungs.items()},
        started=ours.started or (began.timestamp() if began else 0.0),
        seconds=ours.seconds,
        worker=ours.worker,
        error=ours.error,
    )


Number = Annotated[float, Strict()]  # text that reads like a number is not one
Metrics = dict[str, float | str | None]


class _RungFields(BaseModel):
    metrics: dict[str, Any]
    costs: tuple[Number, ...] | None


class _OurFields(BaseModel):
    """The attribute for what Optuna has no place for."""

    violations: tuple[Number, ...] = ()
    rungs: dict[int, _RungFields] = {}
    started: Annotated[Number, Field(ge=0, le=LATEST)] = 0.0
    seconds: Annotated[Number, Field(allow_inf_nan=False)] = 0.0
    worker: str = ""
    error: str | None = None


class _Attributes(BaseModel):
    """What `outcome_attributes` writes."""

    software_metrics: Metrics = {}
    hardware_metrics: Metrics = {}
    scaled_metrics: Metrics = {}
    mase: _OurFields | None = None


def _checked(trial: FrozenTrial, objectives: int) -> _OurFields:
    """Refuse attributes of other kinds than ours, and values that do not fit the study."""
    try:
        attributes = _Attributes.model_validate(trial.user_attrs)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"]))
        raise ValueError(f"trial {trial.number}, {path}: {first['msg']}") from error
    numbers = [trial.number, *(trial.values or ())]
    if not all(isinstance(number, int | float) for number in numbers):
        raise ValueError(f"trial {trial.number!r:.20} has a number or a value that is not a number")
    count = len(trial.values or ())
    if count != objectives and (count or trial.state.name == "COMPLETE"):
        raise ValueError(f"trial {trial.number} has {count} values, not {objectives}")
    return attributes.mase or _OurFields()


def interned(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return a copy that shares its keys with the metrics of all other trials."""
    return {sys.intern(name): value for name, value in metrics.items()}


@functools.lru_cache(maxsize=4096)
def distribution_json(distribution: BaseDistribution) -> str:
    """Return a distribution as Optuna's storages write it."""
    from optuna.distributions import distribution_to_json

    return distribution_to_json(distribution)
