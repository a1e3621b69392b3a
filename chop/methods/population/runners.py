"""`population_train`: `basic_train` for many candidates at once."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chop.actions.search.metrics.base import (
    Metrics,
    RungScore,
    RunnerContext,
    Stopped,
    Trial,
    register_runner,
)
from chop.actions.search.metrics.basic_train import BasicTrain
from chop.actions.search.metrics.groups import GroupRunner
from chop.actions.search.metrics.rungs import Rungs, left_at
from chop.actions.search.metrics.state import isolated
from chop.methods.population.groups import POPULATION, StackableGroups
from chop.methods.population.population import PopulationOutcome, Report
from chop.methods.population.train import train_population
from chop.options import PositiveInt


@register_runner("population_train", "software")
class PopulationTrain(BasicTrain, GroupRunner):
    """`basic_train` for `population` candidates at once, each as it would be trained alone.

    After each epoch of `rungs` only the share `keep` continues, by the objectives, then by
    the loss. `max_seconds` limits the whole population. Candidates that cannot be trained together
    are trained one by one.
    """

    def __init__(
        self, context: RunnerContext, *, population: PositiveInt | None = None, **options: Any
    ) -> None:
        super().__init__(context, **options)
        self.group_size = population or POPULATION.get(context.device.type, 16)
        self._groups: StackableGroups[Trial] = StackableGroups(
            "population_train", self._options, self._data.train_dataset, self.task
        )

    @classmethod
    def compares(cls, options: Mapping[str, Any]) -> bool:
        return False  # candidates are only compared with those that are trained together

    def check_trials(self, count: int) -> None:
        if self._rungs.epochs and count % self.group_size:
            raise ValueError(
                f"rungs compare whole populations, but n_trials = {count} is not a multiple "
                f"of population = {self.group_size}; set n_trials to "
                f"{math.ceil(count / self.group_size) * self.group_size}"
            )

    def together(self, trials: Sequence[Trial]) -> dict[int, Metrics | Exception]:
        if self._distill:
            why = "distill needs the parent's scores, which a population does not ask for"
            self._groups.warn(trials, why)
            return {}
        return self._groups.trained(trials, self._train)

    def _report(self, trial: Trial, epoch: int, metrics: Metrics, *, whole: bool) -> None:
        trial.report(epoch, metrics)  # a trial that is trained alone is compared with no other

    def _train(self, number: int, trials: Sequence[Trial]) -> dict[int, Metrics | Exception]:
        """Train the stackable group `number` of a population."""
        per_epoch = math.ceil(len(self._data.train_dataset) / self._data.batch_size)
        monitor = _PopulationMonitor(trials, self._rungs, per_epoch)
        facts = (self._options, self._data.batch_size, self._rungs.epochs, self._rungs.keep)
        device = self.context.device
        with contextlib.ExitStack() as stack:
            for trial in trials:
                stack.enter_context(isolated(trial.model, device, trial.seed, training=True))
            outcomes = train_population(
                [trial.model for trial in trials],
                (self._data.train_dataset, self._data.val_dataset),
                [replace(self._options, seed=trial.seed) for trial in trials],
                batch_size=self._data.batch_size,
                device=str(device),
                max_seconds=self._options.max_seconds,
                on_epoch=monitor.on_epoch,
                should_stop=monitor.should_stop,
                snapshot=self.file_of(trials, number, facts),
                resume=True,
            )
        pairs = zip(trials, outcomes, strict=True)
        return {trial.number: monitor.result(outcome) for trial, outcome in pairs}


class _PopulationMonitor:
    """Decides which candidates of a population continue."""

    def __init__(self, trials: Sequence[Trial], rungs: Rungs, per_epoch: int) -> None:
        self.trials, self.rungs, self.per_epoch = trials, rungs, per_epoch
        self._stopped: set[int] = set()

    def on_epoch(self, reports: Sequence[Report]) -> None:
        for report in reports:
            if math.isfinite(report.loss) and self._stop_of(report) is not None:
                self._stopped.add(report.candidate)
        if reports and reports[0].epochs in self.rungs.epochs:
            reports = sorted(reports, key=lambda report: report.candidate)
            best = self.rungs.best([self._score(report) for report in reports])
            self._stopped |= {r.candidate for i, r in enumerate(reports) if i not in best}

    def should_stop(self, report: Report) -> bool:
        return report.candidate in self._stopped

    def _stop_of(self, report: Report) -> Stopped | None:
        """Report the metrics of an epoch; return why the search stops the trial, if it does."""
        part = report.steps % self.per_epoch > 0
        try:
            self.trials[report.candidate].report(report.epochs + part, _metrics(report))
        except Stopped as stop:
            return stop
        return None

    def _score(self, report: Report) -> RungScore:
        metrics = _metrics(report)
        trial = self.trials[report.candidate]
        return RungScore(metrics, trial.costs(metrics) if math.isfinite(report.loss) else None)

    def result(self, outcome: PopulationOutcome) -> Metrics | Exception:
        """Return the result of a trial from its outcome, maybe one of an earlier process."""
        if outcome.stopped == "diverged":
            return FloatingPointError(
                f"the loss is not a number at step {outcome.steps}; lower learning_rate"
            )
        stop = self._stop_of(outcome)
        if stop is None and outcome.stopped == "asked":
            stop = left_at(outcome.epochs)
        return stop or _metrics(outcome)


def _metrics(report: Report) -> dict[str, float]:
    assert report.accuracy is not None, "there is a validation split"
    return {"accuracy": report.accuracy, "loss": report.loss}
