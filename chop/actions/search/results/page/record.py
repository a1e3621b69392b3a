"""The content of `search.json`, from which the page of a search is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from chop.system.redaction import redacted, redacted_text

if TYPE_CHECKING:
    from chop.actions.search.results.files import Results

SUM = "sum of scaled metrics"

Metrics = dict[str, float | None]
Direction = Literal["maximize", "minimize"]


class _Part(BaseModel):
    """A table of `search.json`; keys that later versions add are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Objective(_Part):
    """A metric that the search has optimised."""

    name: str
    direction: Direction
    scale: float = 1.0

    def better(self, a: float, b: float) -> bool:
        """Whether `a` is better than `b`."""
        return a > b if self.direction == "maximize" else a < b


class Space(_Part):
    """The search space; its size is None if it has no end."""

    name: str = "unnamed"
    size: int | str | None = None
    choices: dict[str, Any] = {}


class Scores(_Part):
    """Metrics of one network, by the kind of runner that measured them."""

    software_metrics: dict[str, Any] = {}
    hardware_metrics: dict[str, Any] = {}

    @property
    def metrics(self) -> Metrics:
        """All metrics that are numbers; None stands for one that is not finite."""
        return {
            name: finite(value)
            for name, value in (self.software_metrics | self.hardware_metrics).items()
            if value is None or isinstance(value, (int, float))
        }


class Trial(Scores):
    """One design that was tried."""

    number: int
    state: Literal["COMPLETE", "FAIL", "PRUNED", "RUNNING", "WAITING"]
    values: list[float | None] | None = None
    feasible: bool = True
    params: dict[str, Any] = {}
    config: dict[str, Any] = {}
    layers: dict[str, dict[str, Any]] | None = None
    seconds: float | None = None
    error: str | None = None

    @property
    def is_complete(self) -> bool:
        return self.state == "COMPLETE"


class CircuitFacts(_Part):
    """The circuit of a design: what was expected, simulated and synthesised."""

    clock_period: float | None = None
    latency_cycles: int | None = None
    latency_ns: float | None = None
    estimate: dict[str, float | None] = {}
    sources: str | None = None  # path from the page
    top: str | None = None
    simulation: dict[str, float | None] | None = None
    synthesis: SynthesisFacts | None = None
    error: str | None = None


class SynthesisFacts(_Part):
    """The cells of a circuit, in all and by layer."""

    target: str = ""
    tool: str = ""
    clock_period: float | None = None  # ns; that of the emitted circuit may be another one
    latency_cycles: int | None = None
    latency_ns: float | None = None
    estimate: dict[str, float | None] = {}
    packed_luts: int | None = None
    luts: int | None = None
    ffs: int | None = None
    carries: int | None = None
    dsps: int | None = None
    brams: float | None = None
    depth: int | None = None
    layers: dict[str, dict[str, float]] = {}


class SearchRecord(_Part):
    """A whole search."""

    version: int
    command: Annotated[str, AfterValidator(lambda text: redacted_text(text))] = "ch search"
    started: str | None = None
    finished: str | None = None
    seconds: float | None = None
    model: str = "unnamed model"
    dataset: str = "unnamed data set"
    dataset_title: str | None = None
    simulated: bool = False
    fingerprints: dict[str, str | None] = {}  # None: the data set does not have one
    versions: dict[str, str | None] = {}
    machine: dict[str, Any] = {}
    seed: int | None = None
    sampler: str | None = None
    study: str | None = None
    storage: Annotated[str | None, AfterValidator(redacted)] = None
    workers: int | None = None
    space: Space = Space()
    objectives: list[Objective] = Field(min_length=1)
    summed: Direction | None = None
    constraints: list[str] = []
    samples: dict[str, int] = {}  # behind each metric that is a share of correct samples
    layers: dict[str, dict[str, Any]] = {}  # of the parent
    baseline: Scores | None = None
    trials: list[Trial]
    front: list[int] = []
    importance: dict[str, dict[str, float | None]] = {}
    chosen: int | None = None
    test: dict[str, dict[str, Any]] | None = None
    circuits: dict[str, CircuitFacts] | None = None  # by trial
    state: Literal["running", "cut"] | None = None  # of a search that has not written its files

    @property
    def goals(self) -> list[Objective]:
        """What the sampler optimises: the objectives, or their one sum."""
        return [Objective(name=SUM, direction=self.summed)] if self.summed else self.objectives

    def metrics_of(self, trial: Trial) -> Metrics:
        """Return the metrics of a trial and the sum, with objectives in their own units."""
        metrics = dict(trial.metrics)
        for objective, value in zip(self.goals, trial.values or [], strict=False):
            if metrics.get(objective.name) is None:
                metrics[objective.name] = finite(value, divisor=objective.scale)
        return metrics


def finite(value: float | None, divisor: float = 1.0) -> float | None:
    """Return `value / divisor`, None if that is not a number that can be drawn."""
    if value is None or not divisor or not math.isfinite(value):
        return None
    return value / divisor


def record_of(results: Results, facts: Mapping[str, Any]) -> SearchRecord:
    """Return the record of a search from its results in memory."""
    header, rows, summary = results.content(facts)
    share = table_sharing()
    shared = ({**row, "config": _shared(row["config"], share)} for row in rows)
    trials = [Trial.model_validate(row) for row in shared]
    return SearchRecord.model_validate({**header, "trials": trials, **summary})


def _shared(tree: dict[str, Any], share: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    return share({k: _shared(v, share) if isinstance(v, dict) else v for k, v in tree.items()})


def table_sharing() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that replaces equal tables of nodes, of which there are few, by one."""
    known: dict[str, dict[str, Any]] = {}

    def shared(table: dict[str, Any]) -> dict[str, Any]:
        is_of_node = table.keys() == {"config"}
        return known.setdefault(repr(table), table) if is_of_node else table

    return shared
