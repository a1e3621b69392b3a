"""`population_train`: what `basic_train` does for one candidate, for many at once."""

from __future__ import annotations

import contextlib
import hashlib
import math
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from chop.actions.search.metrics.base import (
    Metrics,
    PopulationRunner,
    RungScore,
    RunnerContext,
    Stopped,
    Trial,
    register_runner,
)
from chop.actions.search.metrics.basic_train import BasicTrain
from chop.actions.search.metrics.identity import identity
from chop.actions.search.metrics.rungs import Rungs, left_at
from chop.actions.search.metrics.stackable import POPULATION, StackableGroups
from chop.actions.search.metrics.state import aside
from chop.options import PositiveInt
from chop.training.options import TrainOptions
from chop.training.population import PopulationOutcome, Report, train_population


@register_runner("population_train", "software")
class PopulationTrain(BasicTrain, PopulationRunner):
    """`basic_train` for `population` candidates at once, each as it would be trained alone.

    After each epoch of `rungs` only the share `keep` goes on, by the objectives, then by
    their loss. `max_seconds` are those of all together. What cannot be trained so is trained one by
    one.
    """

    def __init__(
        self,
        context: RunnerContext,
        *,
        population: PositiveInt | None = None,
        **options: Any,
    ) -> None:
        super().__init__(context, **options)
        self.population = population or POPULATION.get(context.device.type, 16)
        self.rungs = self._rungs.epochs
        if context.folder is not None:
            self._identity = identity(context.model, context.data_module, context.seed)
        self._families: StackableGroups[Trial] = StackableGroups(
            "population_train", self._options, self._data.train_dataset
        )

    @classmethod
    def compares(cls, options: Mapping[str, Any]) -> bool:
        return False  # those that are trained together know of each other alone

    def together(self, trials: Sequence[Trial]) -> dict[int, Metrics | Exception]:
        if self._distill:
            self._families.say(
                trials, "distill needs the parent's scores, which a population does not ask for"
            )
            return {}
        return self._families.trained(trials, self._train)

    def _judge(self, trial: Trial, epoch: int, metrics: Metrics, *, whole: bool) -> None:
        trial.report(epoch, metrics)  # who is trained alone has nobody to be compared with

    def _snapshot(self, family: Sequence[Trial], number: int) -> Path | None:
        """A file that only the same trials of the same parent and options find again."""
        if self.context.folder is None:
            return None
        first = family[0].number - family[0].number % self.population
        facts = (self._options, self._data.batch_size, self._rungs.epochs, self._rungs.keep)
        every = [(trial.number, trial.config) for trial in family]
        mark = repr((self._identity, facts, every))
        digest = hashlib.sha256(mark.encode()).hexdigest()[:12]
        self.context.folder.mkdir(parents=True, exist_ok=True)
        return self.context.folder / f"{first}-{number}-{digest}.pt"

    def _train(self, number: int, trials: Sequence[Trial]) -> dict[int, Metrics | Exception]:
        """Train the family `number` of a group."""
        course = _Course(trials, self._rungs, self._steps_per_epoch)
        options = [self._options_of(trial) for trial in trials]
        with contextlib.ExitStack() as stack:
            for trial in trials:
                stack.enter_context(
                    aside(trial.model, self.context.device, trial.seed, training=True)
                )
            outcomes = train_population(
                [trial.model for trial in trials],
                (self._data.train_dataset, self._data.val_dataset),
                options,
                batch_size=self._data.batch_size,
                device=str(self.context.device),
                max_seconds=self._options.max_seconds,
                on_epoch=course.on_epoch,
                should_stop=course.should_stop,
                snapshot=self._snapshot(trials, number),
                resume=True,
            )
        return {
            trial.number: course.result(outcome)
            for trial, outcome in zip(trials, outcomes, strict=True)
        }

    def _options_of(self, trial: Trial) -> TrainOptions:
        return replace(self._options, seed=trial.seed)

    @property
    def _steps_per_epoch(self) -> int:
        return math.ceil(len(self._data.train_dataset) / self._data.batch_size)


class _Course:
    """Who of a population goes on."""

    def __init__(self, trials: Sequence[Trial], rungs: Rungs, per_epoch: int) -> None:
        self.trials, self.rungs, self.per_epoch = trials, rungs, per_epoch
        self._leave: set[int] = set()

    def on_epoch(self, reports: Sequence[Report]) -> None:
        for report in reports:
            if math.isfinite(report.loss) and self._is_stopped(report) is not None:
                self._leave.add(report.candidate)
        if reports and reports[0].epochs in self.rungs.epochs:
            reports = sorted(reports, key=lambda report: report.candidate)
            best = self.rungs.best([self._mark(report) for report in reports])
            self._leave |= {r.candidate for place, r in enumerate(reports) if place not in best}

    def should_stop(self, report: Report) -> bool:
        return report.candidate in self._leave

    def _is_stopped(self, report: Report) -> Stopped | None:
        """What the search says to the score of an epoch."""
        part = report.steps % self.per_epoch > 0
        try:
            self.trials[report.candidate].report(report.epochs + part, _metrics(report))
        except Stopped as stop:
            return stop
        return None

    def _mark(self, report: Report) -> RungScore:
        metrics = _metrics(report)
        trial = self.trials[report.candidate]
        return RungScore(metrics, trial.costs(metrics) if math.isfinite(report.loss) else None)

    def result(self, outcome: PopulationOutcome) -> Metrics | Exception:
        """What a trial has come to, by its outcome alone: that may be one of an earlier process."""
        if outcome.stopped == "diverged":
            return FloatingPointError(
                f"the loss is not a number at step {outcome.steps}; lower learning_rate"
            )
        stop = self._is_stopped(outcome)
        if stop is None and outcome.stopped == "asked":
            stop = left_at(outcome.epochs)
        return stop or _metrics(outcome)


def _metrics(report: Report) -> dict[str, float]:
    assert report.accuracy is not None, "there is a validation split"
    return {"accuracy": report.accuracy, "loss": report.loss}


def forget(folder: Path, first: int) -> None:
    """Remove the snapshots of a group whose trials are recorded."""
    for file in folder.glob(f"{first}-*.pt"):
        file.unlink(missing_ok=True)
    for part in folder.glob(f".{first}-*.part"):  # of processes that were killed
        shutil.rmtree(part, ignore_errors=True)
    with contextlib.suppress(OSError):  # others are at work
        folder.rmdir()


def forget_recorded(folder: Path, recorded: Collection[int], group: int, trials: int) -> None:
    """Remove what a process that was killed has left of groups that others have finished."""
    firsts = {int(file.name.partition("-")[0]) for file in folder.glob("[0-9]*-*.pt")}
    for first in firsts:
        if all(number in recorded for number in range(first, min(first + group, trials))):
            forget(folder, first)
