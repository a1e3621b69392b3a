"""`population_train`: what `basic_train` does for one candidate, for many at once."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from chop.actions.search.rungs import Mark, Rungs, left_at
from chop.actions.search.runners.base import (
    Metrics,
    PositiveInt,
    Scene,
    Stopped,
    Together,
    Trial,
    register_runner,
)
from chop.actions.search.runners.basic_train import BasicTrain
from chop.actions.search.runners.state import aside
from chop.dataset.tensors import TensorSplit
from chop.training.options import TrainOptions
from chop.training.population import Outcome, Report, reason_against, train_population

logger = logging.getLogger(__name__)

POPULATION = {"cpu": 16, "cuda": 256}  # where nothing is said


@register_runner("population_train", "software")
class PopulationTrain(BasicTrain, Together):
    """`basic_train` for `population` candidates at once, each as it would be trained alone.

    After each epoch of `rungs` only the share `keep` goes on, by the goals of the search, then by
    their loss. `max_seconds` are those of all together. What cannot be trained so is trained one by
    one.
    """

    def __init__(
        self,
        scene: Scene,
        *,
        population: PositiveInt | None = None,
        **options: Any,
    ) -> None:
        super().__init__(scene, **options)
        self.population = population or POPULATION.get(scene.device.type, 16)
        self.rungs = self._rungs.epochs
        self._said: set[str] = set()

    @classmethod
    def compares(cls, options: Mapping[str, Any]) -> bool:
        return False  # those that are trained together know of each other alone

    @classmethod
    def options(cls) -> dict[str, inspect.Parameter]:
        return {**super().options(), **BasicTrain.options()}

    def together(self, trials: Sequence[Trial]) -> dict[int, Metrics | Exception]:
        found: dict[int, Metrics | Exception] = {}
        for number, family in enumerate(self._families(trials)):
            if len(family) == 1:
                continue
            try:
                found |= self._train(family, self._snapshot(family, number))
            except (ValueError, RuntimeError) as error:  # the one at fault will say so alone
                self._say(family, str(error))
        return found

    def _judge(self, trial: Trial, epoch: int, metrics: Metrics, *, whole: bool) -> None:
        trial.report(epoch, metrics)  # who is trained alone has nobody to be compared with

    def _families(self, trials: Sequence[Trial]) -> list[list[Trial]]:
        """The trials in groups that can be stacked."""
        why = self._reason(trials)
        if why is not None:
            self._say(trials, why)
            return []
        models = [trial.model for trial in trials]
        if reason_against(models, self._options) is None:
            return [list(trials)]
        families: list[list[Trial]] = []
        for trial in trials:
            why = reason_against([trial.model], self._options)
            for family in families if why is None else ():
                why = reason_against([family[0].model, trial.model], self._options)
                if why is None:
                    family.append(trial)
                    break
            else:
                families.append([trial])
                if why is not None:
                    self._say([trial], why)
        return families

    def _reason(self, trials: Sequence[Trial]) -> str | None:
        """Why no trial of these can be stacked, whatever their networks."""
        if self._distill:
            return "distill needs the parent's scores, which a population does not ask for"
        if not isinstance(self._data.train_dataset, TensorSplit):
            return "the data set is none of tensors in memory"
        if len({id(trial.model) for trial in trials}) < len(trials):
            return "the search space gives one network for all designs"
        return None

    def _say(self, trials: Sequence[Trial], why: str) -> None:
        """Each reason once."""
        if why not in self._said:
            self._said.add(why)
            numbers = ", ".join(str(trial.number) for trial in trials)
            logger.warning("population_train: trials %s are trained one by one: %s", numbers, why)

    def _snapshot(self, family: Sequence[Trial], number: int) -> Path | None:
        """A file that only the same trials with the same options find again."""
        if self.scene.folder is None:
            return None
        first = family[0].number - family[0].number % self.population
        facts = (self._options, self._data.batch_size, self._rungs.epochs, self._rungs.keep)
        mark = repr((facts, [(trial.number, trial.config) for trial in family]))
        digest = hashlib.sha256(mark.encode()).hexdigest()[:12]
        self.scene.folder.mkdir(parents=True, exist_ok=True)
        return self.scene.folder / f"{first}-{number}-{digest}.pt"

    def _train(
        self, trials: Sequence[Trial], snapshot: Path | None
    ) -> dict[int, Metrics | Exception]:
        course = _Course(trials, self._rungs, self._steps_per_epoch)
        options = [self._options_of(trial) for trial in trials]
        with contextlib.ExitStack() as stack:
            for trial in trials:
                stack.enter_context(
                    aside(trial.model, self.scene.device, trial.seed, training=True)
                )
            outcomes = train_population(
                [trial.model for trial in trials],
                (self._data.train_dataset, self._data.val_dataset),
                options,
                batch_size=self._data.batch_size,
                device=str(self.scene.device),
                max_seconds=self._options.max_seconds,
                on_epoch=course.on_epoch,
                should_stop=course.should_stop,
                snapshot=snapshot,
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

    def _mark(self, report: Report) -> Mark:
        metrics = _metrics(report)
        trial = self.trials[report.candidate]
        return Mark(metrics, trial.costs(metrics) if math.isfinite(report.loss) else None)

    def result(self, outcome: Outcome) -> Metrics | Exception:
        """What a trial has come to, by its outcome alone: that may be one of an earlier process."""
        if outcome.stopped == "diverged":
            return FloatingPointError(
                f"the loss was no number by step {outcome.steps}; lower learning_rate"
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
    for file in _snapshots(folder, first):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # others are at work
        folder.rmdir()


def _snapshots(folder: Path, first: int) -> Iterator[Path]:
    return folder.glob(f"{first}-*.pt*")
