"""Measure one design after the other, each from the pristine parent."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from chop.actions.search.metrics.base import Metrics, RungScore, Runner, Stopped, Trial
from chop.actions.search.metrics.objectives import Costs, dominates
from chop.actions.search.metrics.outcome import Outcome, State
from chop.actions.search.metrics.rungs import KnownTrials
from chop.actions.search.samplers.base import Chosen
from chop.actions.search.space.base import Candidate
from chop.actions.search.spec.settings import EarlyStopping
from chop.actions.search.spec.study_spec import StudySpec
from chop.ir.graph.mase_graph import MaseGraph
from chop.redaction import redacted_text
from chop.training.devices import fixed_threads

NO_TRIALS = KnownTrials()
MakeCandidate = Callable[[dict[str, Any]], Candidate]


class Worker:
    """Measures designs of a study; each process has one worker."""

    def __init__(self, spec: StudySpec) -> None:
        self.spec, self.space, self.runners = spec, spec.space, spec.runners
        self.objectives = spec.settings.objectives
        self.name = f"{socket.gethostname()}:{os.getpid()}"

    def run(self, number: int, chosen: Chosen, known: KnownTrials = NO_TRIALS) -> Outcome:
        """Measure a design; an error becomes part of the outcome."""
        measurement = Measurement(self, number, known)
        with self._threads(), measurement.recording():
            measurement.trial = self._trial(measurement, chosen, self.space.candidate)
            measurement.call(self.runners)
            measurement.evaluate_objectives()
        return measurement.outcome()

    def _threads(self) -> contextlib.AbstractContextManager[None]:
        return fixed_threads(self.spec.settings.threads)

    def run_together(
        self, designs: Sequence[tuple[int, Chosen, KnownTrials]]
    ) -> dict[int, Outcome]:
        """Measure designs that are trained as one; those that have to be run alone are missing."""
        runner = self.spec.group_runner
        assert runner is not None
        place = self.runners.index(runner)
        with self._threads():
            every = [self._begin(*design, self.runners[:place]) for design in designs]
            begun = [each for each in every if each.state == "COMPLETE"]
            clock = time.perf_counter()
            results = runner.together([each.trial for each in begun])
            seconds = (time.perf_counter() - clock) / max(1, len(results))
            for each in begun:
                each.seconds += seconds
                if each.number in results:
                    with each.recording():
                        each.add(runner, results[each.number])
                        each.call(self.runners[place + 1 :])
                        each.evaluate_objectives()
        alone = {each.number for each in begun} - results.keys()
        return {each.number: each.outcome() for each in every if each.number not in alone}

    def _begin(
        self, number: int, chosen: Chosen, known: KnownTrials, runners: Sequence[Runner]
    ) -> Measurement:
        """Call the runners that come before the one that trains designs together."""
        measurement = Measurement(self, number, known)
        with measurement.recording():
            measurement.trial = self._trial(measurement, chosen, self.space.separate_candidate)
            measurement.call(runners)
        return measurement

    def _trial(self, measurement: Measurement, chosen: Chosen, make: MakeCandidate) -> Trial:
        seed = self._seeded(measurement.number)
        config = self.space.config_of(chosen)
        candidate = make(config)
        if not self.spec.parent.trained and self.spec.settings.gradient is None:
            candidate = dataclasses.replace(candidate, fresh=("the whole network",))
        return measurement.monitor.trial_of(measurement.number, config, seed, candidate)

    def _seeded(self, number: int) -> int:
        """Seed all random numbers for a trial, and return its seed."""
        seed = self.spec.sampler_context.seed_of(number)
        _seed_all(seed)
        return seed

    def untrained(self, number: int, chosen: Chosen) -> MaseGraph:
        """Return a new network of a trial, as it was before its trial."""
        self._seeded(number)
        return self.space.build(self.space.config_of(chosen))

    def rebuilt(self, number: int, chosen: Chosen) -> MaseGraph:
        """Return a new network of a trial, trained as in the trial."""
        graph = self.untrained(number, chosen)
        seed, config = self.spec.sampler_context.seed_of(number), self.space.config_of(chosen)
        trial = self._trial_of(number, config, seed, graph)
        with self._threads():
            for runner in self.runners:
                if runner.trains:
                    runner(trial)
        return graph

    def baseline(self) -> dict[str, dict[str, float]]:
        """Return the metrics of the parent, which is not trained for them."""
        seed = self.spec.parent.seed
        _seed_all(seed)
        trial = self._trial_of(-1, {}, seed, self.spec.parent.graph)
        metrics: dict[str, dict[str, float]] = {"software": {}, "hardware": {}}
        with self._threads():
            for runner in self.runners:
                metrics[runner.side] |= runner.parent_metrics(trial)
        return metrics

    def _trial_of(self, number: int, config: dict[str, Any], seed: int, graph: MaseGraph) -> Trial:
        """Return the trial of a network that is compared with no other."""
        candidate = Candidate(graph.model, lambda: graph)
        return _Monitor(None, self, NO_TRIALS).trial_of(number, config, seed, candidate)


class Measurement:
    """A trial on its way through the runners."""

    trial: Trial

    def __init__(self, worker: Worker, number: int, known: KnownTrials) -> None:
        self.worker, self.number = worker, number
        self.monitor = _Monitor(worker.spec.settings.early_stopping, worker, known)
        self.state: State = "COMPLETE"
        self.started, self.seconds = time.time(), 0.0
        self.metrics: dict[str, dict[str, float]] = {"software": {}, "hardware": {}}
        self.result: dict[str, Any] = {}  # further fields of the outcome

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Time what is done meanwhile; an error ends the trial."""
        clock = time.perf_counter()
        try:
            yield
        except Stopped as stop:
            self.state, self.result = "PRUNED", {"error": str(stop)}
            self.metrics["software"] |= self.monitor.last
        except Exception as error:  # out of memory as well: the next design may need less
            lines = traceback.format_exception(error)
            self.state, self.result = "FAIL", {"error": redacted_text("".join(lines).strip())}
        self.seconds += time.perf_counter() - clock

    def call(self, runners: Sequence[Runner]) -> None:
        for runner in runners:
            self.add(runner, runner(self.trial))

    def add(self, runner: Runner, metrics: Metrics | Exception) -> None:
        """Add the metrics of a runner, or raise its error."""
        if isinstance(metrics, Exception):
            raise metrics
        self.metrics[runner.side] |= metrics
        self.trial.found.update(metrics)
        if runner.trains:
            self.trial.fresh, self.trial.trained = (), True
            self._measure_again(runner)

    def _measure_again(self, trainer: Runner) -> None:
        """Measure what depends on the weights again, once these are trained.

        Before training, too, it is needed: to stop candidates early.
        """
        runners = self.worker.runners
        for runner in runners[: runners.index(trainer)]:
            if getattr(runner, "reads_weights", False):
                self.add(runner, runner(self.trial))

    def evaluate_objectives(self) -> None:
        objectives, metrics = self.worker.objectives, self.trial.found
        self.result = {
            "values": tuple(objectives.values(metrics)),
            "violations": tuple(objectives.violations(metrics)),
            "scaled": objectives.scaled(metrics),
        }

    def outcome(self) -> Outcome:
        return Outcome(
            self.number,
            self.state,
            software=self.metrics["software"],
            hardware=self.metrics["hardware"],
            rungs=self.monitor.scores,
            started=self.started,
            seconds=self.seconds,
            worker=self.worker.name,
            **self.result,
        )


class _Monitor:
    """Compares a trial with others, and stops it when it cannot reach the Pareto front."""

    trial: Trial

    def __init__(self, rule: EarlyStopping | None, worker: Worker, known: KnownTrials) -> None:
        self.rule, self.objectives, self.known = rule, worker.objectives, known
        self.scores: dict[int, RungScore] = {}
        self.last = dict[str, float]()

    def trial_of(
        self, number: int, config: dict[str, Any], seed: int, candidate: Candidate
    ) -> Trial:
        """Return the trial of a candidate, which reports to this monitor."""
        parts = (candidate.make_graph, candidate.model, candidate.fresh)
        self.trial = Trial(
            number, config, seed, *parts, report=self, costs=self.costs, mark=self.mark
        )
        return self.trial

    def __call__(self, step: int, metrics: Metrics) -> None:
        self.last = dict(metrics)
        if self.rule is None or step < self.rule.warmup or not self.known.front:
            return
        costs = self.costs(metrics, with_margin=True)
        if costs is not None and any(dominates(member, costs) for member in self.known.front):
            raise Stopped(f"stopped after epoch {step}: dominated even with the margin")

    def mark(self, rung: int, metrics: Metrics) -> tuple[RungScore, Sequence[RungScore]]:
        """Store the score of the trial at a rung; return it and the scores of earlier trials."""
        score = self.scores[rung] = RungScore(dict(metrics), self.costs(metrics))
        return score, self.known.rung_scores.get(rung, ())

    def costs(self, metrics: Metrics, *, with_margin: bool = False) -> Costs | None:
        """Return the costs of the trial, None while a metric is unknown."""
        known = {**self.trial.found, **metrics}
        if any(objective.name not in known for objective in self.objectives.members):
            return None
        margins = self.rule.margin if with_margin and self.rule else {}
        for objective in self.objectives.members:
            margin = margins.get(objective.name, 0.0)
            known[objective.name] += margin if self.objectives.wants_more(objective) else -margin
        return self.objectives.costs(self.objectives.values(known))


def _seed_all(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    # torch.manual_seed would record, at each call, what to do on a GPU that is never used
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
