"""Two searches on one page: both fronts in the metrics that they share."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from chop.actions.config import ConfigError
from chop.actions.search.results.page.columns import Columns, by_key, metric_names
from chop.actions.search.results.page.hypervolume import Shares, dominates, front_of, hypervolume
from chop.actions.search.results.page.numbers import compact, decimals
from chop.actions.search.results.page.record import SUM, Direction, Metrics, SearchRecord, Trial


@dataclass(frozen=True)
class ComparedTrial:
    """A trial of one of the searches, with its metrics."""

    search: int
    trial: Trial
    metrics: Metrics


@dataclass(frozen=True)
class Comparison:
    """Searches with the names to call them by; `compared` makes one."""

    records: Sequence[SearchRecord]
    names: Sequence[str]

    @cached_property
    def designs(self) -> list[ComparedTrial]:
        """The trials that were completed or stopped early, of one search after the other."""
        return [
            ComparedTrial(search, trial, record.metrics_of(trial))
            for search, record in enumerate(self.records)
            for trial in record.trials
            if trial.state in ("COMPLETE", "PRUNED")
        ]

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics that every search has measured, goals first."""
        known = [
            {name for d in self.designs if d.search == search for name in _known(d.metrics)}
            for search in range(len(self.records))
        ]
        names = dict.fromkeys(name for record in self.records for name in metric_names(record))
        shared = [name for name in names if name != SUM and all(name in each for each in known)]
        return sorted(shared, key=lambda name: name not in self.directions)

    @cached_property
    def directions(self) -> dict[str, Direction]:
        """Which way is better, for the objectives of any search; not where searches disagree."""
        found: dict[str, Direction] = {}
        opposed = set()
        for objective in itertools.chain(*(record.objectives for record in self.records)):
            if found.setdefault(objective.name, objective.direction) != objective.direction:
                opposed.add(objective.name)
        return {name: direction for name, direction in found.items() if name not in opposed}

    @property
    def goals(self) -> list[str]:
        """The shared metrics in which the fronts are compared."""
        return [name for name in self.metrics if name in self.directions]

    @cached_property
    def _counted(self) -> list[ComparedTrial]:
        return [
            design
            for design in self.designs
            if design.trial.is_complete
            and design.trial.feasible
            and all(design.metrics.get(name) is not None for name in self.goals)
        ]

    @cached_property
    def reference(self) -> dict[str, tuple[float, float]]:
        """The worst and the best value of each goal that any search has seen."""
        ends = {}
        for name in self.goals if self._counted else ():
            values = [value for d in self._counted if (value := d.metrics[name]) is not None]
            low, high = min(values), max(values)
            ends[name] = (low, high) if self.directions[name] == "maximize" else (high, low)
        return ends

    def shares(self, design: ComparedTrial) -> Shares:
        """Return where a design lies between the worst and the best value of each goal."""
        found = []
        for name, (worst, best) in self.reference.items():
            value = design.metrics[name]
            assert value is not None, "only designs with all goals are counted"
            found.append(1.0 if worst == best else (value - worst) / (best - worst))
        return tuple(found)

    @cached_property
    def fronts(self) -> list[list[ComparedTrial]]:
        """The front of each search in the shared goals; of equal designs, the first."""
        fronts = []
        for search in range(len(self.records)):
            by_shares: dict[Shares, ComparedTrial] = {}
            for design in self._counted if self.goals else ():
                if design.search == search:
                    by_shares.setdefault(self.shares(design), design)
            fronts.append([by_shares[shares] for shares in front_of(by_shares)])
        return fronts

    def hypervolume(self, search: int) -> float:
        """Return the share of the box from the worst to the best values that a front dominates."""
        return hypervolume([self.shares(design) for design in self.fronts[search]])

    def beaten(self, search: int) -> int:
        """Return how many designs of a front are dominated by a design of another search."""
        others = [self.shares(d) for d in itertools.chain(*self.fronts) if d.search != search]
        own = map(self.shares, self.fronts[search])
        return sum(any(dominates(other, shares) for other in others) for shares in own)

    @property
    def same_data(self) -> bool:
        """Whether all searches measured on the same data, as far as is known."""
        facts = [(record.dataset, record.fingerprints) for record in self.records]
        return all(fact == facts[0] for fact in facts)

    def data(self) -> dict[str, Any]:
        """Return the data of the drawings, which have the same form as those of one search."""
        columns, place = Columns(), {id(d): i for i, d in enumerate(self.designs)}
        front = [place[id(design)] for design in itertools.chain(*self.fronts)]
        trials = [design.trial for design in self.designs]
        return {
            "searches": list(self.names),
            "series": columns.add([design.search for design in self.designs]),
            "goals": len(self.goals),
            "number": [trial.number for trial in trials],
            "pruned": columns.add([not trial.is_complete for trial in trials]),
            "feasible": columns.add([trial.feasible for trial in trials]),
            "seconds": columns.add([compact(trial.seconds) for trial in trials]),
            "front": front,
            "chosen": None,
            "metrics": [self._metric(name, columns) for name in self.metrics],
            "params": by_key([trial.params for trial in trials], columns),
            "config": {},
            "columns": columns.kept,
        }

    def _metric(self, name: str, columns: Columns) -> dict[str, Any]:
        baselines = [_baseline(record).get(name) for record in self.records]
        values = [design.metrics.get(name) for design in self.designs]
        samples = [record.samples.get(name) for record in self.records]
        return {
            "name": name,
            "direction": self.directions.get(name),
            "objective": name in self.directions,
            "decimals": decimals([*values, *baselines]),
            "baselines": [compact(value) for value in baselines],
            "samples": samples if any(samples) else None,
            "column": columns.add([compact(value) for value in values]),
        }


def _known(metrics: Mapping[str, float | None]) -> set[str]:
    return {name for name, value in metrics.items() if value is not None}


def _baseline(record: SearchRecord) -> Metrics:
    return record.baseline.metrics if record.baseline else {}


def compared(records: Sequence[SearchRecord], names: Sequence[str]) -> Comparison:
    """Return the comparison of searches; those without a common metric are refused."""
    numbered = [f"{name} ({i})" for i, name in enumerate(names, 1)]
    comparison = Comparison(records, names if len(set(names)) == len(names) else numbered)
    if not comparison.metrics:
        have = "; ".join(
            f"{name} has {', '.join(_measured(record)) or 'none'}"
            for name, record in zip(comparison.names, records, strict=True)
        )
        raise ConfigError(
            f"the searches have no metric in common ({have}); compare searches with the same metric"
        )
    return comparison


def _measured(record: SearchRecord) -> list[str]:
    """Return the metrics that some trial of a search has."""
    known = set().union(*(_known(record.metrics_of(trial)) for trial in record.trials))
    return [name for name in metric_names(record) if name in known and name != SUM]
