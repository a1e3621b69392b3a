"""Measure one design after the other, each from the pristine parent."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import random
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from chop.actions.config import ConfigError
from chop.actions.search.metrics.base import (
    Metrics,
    Runner,
    RunnerContext,
    Stopped,
    Together,
    Trial,
)
from chop.actions.search.metrics.objectives import Costs, dominates
from chop.actions.search.metrics.outcome import Outcome, State
from chop.actions.search.metrics.rungs import KnownTrials, RungScore
from chop.actions.search.samplers.base import Chosen, SamplerContext
from chop.actions.search.space.base import Candidate, Space
from chop.actions.search.spec.settings import EarlyStopping, Settings
from chop.redaction import redacted_text

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph

NO_TRIALS = KnownTrials()


@contextlib.contextmanager
def fixed_threads(number: int) -> Iterator[None]:
    """So many threads, whatever the engine: the order of sums, and so the last bits, hang on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Worker:
    """The space and the runners, ready: made once in each process."""

    def __init__(
        self, space: Space, context: RunnerContext, settings: Settings, *, trained: bool = True
    ) -> None:
        self.space, self.context, self.settings, self.trained = space, context, settings, trained
        self.objectives = settings.objectives
        self.runners = [cls(context, **options) for cls, options in settings.runners]
        if any(runner.trains for runner in self.runners):
            space.expect_training()
        # the cost of a design is known before it is trained, which early stopping lives on, and
        # what looks at its weights sees trained ones, wherever the tables stand in the file
        self.runners.sort(key=lambda runner: (runner.side == "software", not runner.trains))
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._pooled = next((r for r in self.runners if isinstance(r, Together)), None)

    @property
    def group(self) -> int:
        """How many designs are trained together."""
        return 1 if self._pooled is None else self._pooled.population

    def check(self) -> None:
        """Refuse numbers of trials that would make the last group another one when it is raised."""
        trials, pooled = self.settings.n_trials, self._pooled
        if pooled is not None and pooled.rungs and trials % pooled.population:
            raise ConfigError(
                f"rungs compare whole populations, but n_trials = {trials} is not a multiple "
                f"of population = {pooled.population}; set n_trials to "
                f"{math.ceil(trials / pooled.population) * pooled.population}"
            )

    @functools.cached_property
    def sampler_context(self) -> SamplerContext:
        """What the strategy may know."""
        settings = self.settings
        return SamplerContext(
            self.space.choices,
            self.objectives.directions,
            settings.n_trials,
            self.context.seed,
            bool(self.objectives.constraints),
        )

    def run(self, number: int, chosen: Chosen, known: KnownTrials = NO_TRIALS) -> Outcome:
        """Measure a design; what goes wrong is part of the outcome."""
        with fixed_threads(self.settings.threads):
            return self._run(number, chosen, known)

    def _run(self, number: int, chosen: Chosen, known: KnownTrials) -> Outcome:
        measurement = Measurement(self, number, known)
        with measurement.noting():
            measurement.trial = self._trial(measurement, chosen, self.space.candidate)
            measurement.go_through(self.runners)
            measurement.judge()
        return measurement.outcome()

    def run_together(
        self, designs: Sequence[tuple[int, Chosen, KnownTrials]]
    ) -> dict[int, Outcome]:
        """Measure designs that are trained as one; those that have to be run alone are missing."""
        assert self._pooled is not None
        with fixed_threads(self.settings.threads):
            place = self.runners.index(self._pooled)
            every = [self._begun(*design, self.runners[:place]) for design in designs]
            begun = [each for each in every if each.state == "COMPLETE"]
            results = self._trained_together(begun)
            alone = {each.number for each in begun if each.number not in results}
            for each in begun:
                if each.number in results:
                    self._finish(each, results[each.number], self.runners[place + 1 :])
        return {each.number: each.outcome() for each in every if each.number not in alone}

    def _begun(
        self, number: int, chosen: Chosen, known: KnownTrials, runners: Sequence[Runner]
    ) -> Measurement:
        measurement = Measurement(self, number, known)
        with measurement.noting():
            measurement.trial = self._trial(measurement, chosen, self.space.own)
            measurement.go_through(runners)
        return measurement

    def _trained_together(self, begun: Sequence[Measurement]) -> dict[int, Metrics | Exception]:
        """What came of those that could be trained as one, who share the time that it took."""
        assert self._pooled is not None
        clock = time.perf_counter()
        results = self._pooled.together([each.trial for each in begun])
        seconds = (time.perf_counter() - clock) / max(1, len(results))
        for each in begun:
            each.seconds += seconds
        return results

    def _finish(
        self, measurement: Measurement, result: Metrics | Exception, runners: Sequence[Runner]
    ) -> None:
        assert self._pooled is not None
        with measurement.noting():
            if isinstance(result, Exception):
                raise result
            measurement.enter(self._pooled, result)
            measurement.go_through(runners)
            measurement.judge()

    def _trial(
        self,
        measurement: Measurement,
        chosen: Chosen,
        candidate: Callable[[dict[str, Any]], Candidate],
    ) -> Trial:
        """The trial of a design, whose network `candidate` makes."""
        seed = self.sampler_context.seed_of(measurement.number)
        _seed_all(seed)
        config = self.space.config_of(chosen)
        made = self._noted(candidate(config))
        return _trial(measurement.number, config, seed, made, measurement.watch)

    def _noted(self, candidate: Candidate) -> Candidate:
        """The candidate, of which nothing is trained if the parent is not."""
        if self.trained:
            return candidate
        return dataclasses.replace(candidate, fresh=("the whole network",))

    def untrained(self, number: int, chosen: Chosen) -> MaseGraph:
        """The network of a trial, its own, as it was before its trial."""
        _seed_all(self.sampler_context.seed_of(number))
        return self.space.build(self.space.config_of(chosen))

    def rebuilt(self, number: int, chosen: Chosen) -> MaseGraph:
        """The network of a trial, its own, trained as in the trial."""
        graph = self.untrained(number, chosen)
        seed, config = self.sampler_context.seed_of(number), self.space.config_of(chosen)
        candidate = Candidate(graph.model, lambda: graph)
        trial = _trial(number, config, seed, candidate, _Watch(None, self, NO_TRIALS))
        with fixed_threads(self.settings.threads):
            for runner in self.runners:
                if runner.trains:
                    runner(trial)
        return graph

    def baseline(self) -> dict[str, dict[str, float]]:
        """The parent itself, measured by all runners that need not train it."""
        _seed_all(self.context.seed)
        graph = self.context.graph
        candidate = Candidate(graph.model, lambda: graph)
        trial = _trial(-1, {}, self.context.seed, candidate, _Watch(None, self, NO_TRIALS))
        found: dict[str, dict[str, float]] = {"software": {}, "hardware": {}}
        with fixed_threads(self.settings.threads):
            for runner in self.runners:
                if not runner.trains:
                    found[runner.side] |= runner(trial)
        return found


def _trial(
    number: int, config: dict[str, Any], seed: int, candidate: Candidate, watch: _Watch
) -> Trial:
    trial = Trial(
        number,
        config,
        seed,
        candidate.make_graph,
        candidate.model,
        candidate.fresh,
        report=watch,
        costs=watch.costs,
        mark=watch.mark,
    )
    watch.trial = trial
    return trial


class Measurement:
    """A trial on its way through the runners; what goes wrong is part of its outcome."""

    trial: Trial

    def __init__(self, worker: Worker, number: int, known: KnownTrials) -> None:
        self.worker, self.number = worker, number
        self.watch = _Watch(worker.settings.early_stopping, worker, known)
        self.state: State = "COMPLETE"
        self.started, self.seconds = time.time(), 0.0
        self.found: dict[str, dict[str, float]] = {"software": {}, "hardware": {}}
        self.told: dict[str, Any] = {}

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """What is done meanwhile is timed, and its failure is the trial's."""
        clock = time.perf_counter()
        try:
            yield
        except Stopped as stop:
            self.state, self.told = "PRUNED", {"error": str(stop)}
            self.found["software"] |= self.watch.last
        except Exception as error:  # memory that is not there, too: the next design may need less
            self.state, self.told = "FAIL", {"error": _told(error)}
        self.seconds += time.perf_counter() - clock

    def go_through(self, runners: Sequence[Runner]) -> None:
        for runner in runners:
            self.enter(runner, runner(self.trial))

    def enter(self, runner: Runner, metrics: Metrics) -> None:
        """Write down what a runner has found."""
        self.found[runner.side] |= metrics
        self.trial.found.update(metrics)
        self.trial.fresh = () if runner.trains else self.trial.fresh

    def judge(self) -> None:
        """See what the objectives make of it."""
        objectives, metrics = self.worker.objectives, self.trial.found
        self.told = {
            "values": tuple(objectives.values(metrics)),
            "violations": tuple(objectives.violations(metrics)),
            "scaled": objectives.scaled(metrics),
        }

    def outcome(self) -> Outcome:
        return Outcome(
            self.number,
            self.state,
            software=self.found["software"],
            hardware=self.found["hardware"],
            rungs=self.watch.scores,
            started=self.started,
            seconds=self.seconds,
            worker=self.worker.name,
            **self.told,
        )


class _Watch:
    """Knows what others have come to; stops a trial that cannot get onto the front any more."""

    trial: Trial

    def __init__(self, rule: EarlyStopping | None, worker: Worker, known: KnownTrials) -> None:
        self.rule, self.objectives, self.known = rule, worker.objectives, known
        self.scores: dict[int, RungScore] = {}
        self.reports, self.last = 0, dict[str, float]()

    def __call__(self, step: int, metrics: Metrics) -> None:
        self.reports, self.last = step, dict(metrics)
        if self.rule is None or self.reports < self.rule.warmup or not self.known.front:
            return
        costs = self.costs(metrics, hopeful=True)
        if costs is not None and any(dominates(member, costs) for member in self.known.front):
            raise Stopped(f"stopped after epoch {self.reports}: dominated even with the margin")

    def mark(self, rung: int, metrics: Metrics) -> tuple[RungScore, Sequence[RungScore]]:
        """Note down what the trial has come to at a rung; that, and what those before had."""
        mine = self.scores[rung] = RungScore(dict(metrics), self.costs(metrics))
        return mine, self.known.rung_scores.get(rung, ())

    def costs(self, metrics: Metrics, *, hopeful: bool = False) -> Costs | None:
        """The costs of the trial, None while a metric is unknown; `hopeful` adds the margins."""
        known = {**self.trial.found, **metrics}
        if any(objective.name not in known for objective in self.objectives.members):
            return None
        for objective in self.objectives.members:
            margin = self.rule.margin.get(objective.name, 0.0) if hopeful and self.rule else 0.0
            known[objective.name] += margin if self.objectives.wants_more(objective) else -margin
        return self.objectives.costs(self.objectives.values(known))


def _seed_all(seed: int) -> None:
    """Python, NumPy and torch start from `seed`."""
    random.seed(seed)
    np.random.seed(seed)
    # torch.manual_seed would note down, at each call, what to tell a GPU that is never used
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


def _told(error: BaseException) -> str:
    lines = traceback.format_exception(error)
    return redacted_text("".join(lines).strip())


__all__ = ["Runner", "Worker"]
