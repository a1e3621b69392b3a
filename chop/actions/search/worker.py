"""Measure one design after the other, each from the pristine parent."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import random
import socket
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from chop.actions.search.goals import Costs, dominates
from chop.actions.search.outcome import Outcome
from chop.actions.search.runners.base import Metrics, Runner, Scene, Stopped, Trial
from chop.actions.search.search_space.base import Candidate, Space
from chop.actions.search.settings import EarlyStopping, Settings
from chop.actions.search.strategies.base import Chosen, Quest

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph

# what ends the whole search and not one trial
FATAL = (KeyboardInterrupt, SystemExit, MemoryError)


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
        self, space: Space, scene: Scene, settings: Settings, *, trained: bool = True
    ) -> None:
        self.space, self.scene, self.settings, self.trained = space, scene, settings, trained
        self.goals = settings.goals
        self.runners = [cls(scene, **options) for cls, options in settings.runners]
        if any(runner.trains for runner in self.runners):
            space.expect_training()
        # the cost of a design is known before it is trained, which early stopping lives on
        self.runners.sort(key=lambda runner: runner.side == "software")
        self.name = f"{socket.gethostname()}:{os.getpid()}"

    @functools.cached_property
    def quest(self) -> Quest:
        """What the strategy may know."""
        settings = self.settings
        return Quest(
            self.space.choices,
            self.goals.directions,
            settings.n_trials,
            self.scene.seed,
            bool(self.goals.constraints),
        )

    def run(self, number: int, chosen: Chosen, front: Sequence[Costs] = ()) -> Outcome:
        """Measure a design; what goes wrong is part of the outcome."""
        with fixed_threads(self.settings.threads):
            return self._run(number, chosen, front)

    def _run(self, number: int, chosen: Chosen, front: Sequence[Costs]) -> Outcome:
        started, clock = time.time(), time.perf_counter()
        watch = _Watch(self.settings.early_stopping, self, front)
        found: dict[str, dict[str, float]] = {"software": {}, "hardware": {}}
        told: dict[str, Any] = {}
        try:
            seed = self.quest.seed_of(number)
            _seed_all(seed)
            config = self.space.config_of(chosen)
            candidate = self._candidate(config)
            trial = _trial(number, config, seed, candidate, watch)
            for runner in self.runners:
                metrics = dict(runner(trial))
                found[runner.side] |= metrics
                trial.found.update(metrics)
                trial.fresh = () if runner.trains else trial.fresh
            told = self._judged(trial.found)
            state = "COMPLETE"
        except Stopped as stop:
            state, told = "PRUNED", {"error": str(stop)}
            found["software"] |= watch.last
        except FATAL:
            raise
        except Exception as error:
            state, told = "FAIL", {"error": _told(error)}
        return Outcome(
            number,
            state,  # type: ignore[arg-type]
            software=found["software"],
            hardware=found["hardware"],
            started=started,
            seconds=time.perf_counter() - clock,
            worker=self.name,
            **told,
        )

    def _candidate(self, config: dict[str, Any]) -> Candidate:
        candidate = self.space.candidate(config)
        if self.trained:
            return candidate
        return dataclasses.replace(candidate, fresh=("the whole network",))

    def _judged(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        return {
            "values": tuple(self.goals.values(metrics)),
            "violations": tuple(self.goals.violations(metrics)),
            "scaled": self.goals.scaled(metrics),
        }

    def rebuilt(self, number: int, chosen: Chosen) -> MaseGraph:
        """The network of a trial, its own, trained as in the trial."""
        seed = self.quest.seed_of(number)
        _seed_all(seed)
        config = self.space.config_of(chosen)
        graph = self.space.build(config)
        candidate = Candidate(graph.model, lambda: graph)
        trial = _trial(number, config, seed, candidate, _Watch(None, self, ()))
        with fixed_threads(self.settings.threads):
            for runner in self.runners:
                if runner.trains:
                    runner(trial)
        return graph

    def baseline(self) -> dict[str, dict[str, float]]:
        """The parent itself, measured by all runners that need not train it."""
        _seed_all(self.scene.seed)
        graph = self.scene.graph
        candidate = Candidate(graph.model, lambda: graph)
        trial = _trial(-1, {}, self.scene.seed, candidate, _Watch(None, self, ()))
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
    )
    watch.trial = trial
    return trial


class _Watch:
    """Stops a trial in training that cannot get onto the front any more."""

    trial: Trial

    def __init__(self, rule: EarlyStopping | None, worker: Worker, front: Sequence[Costs]) -> None:
        self.rule, self.goals, self.front = rule, worker.goals, front
        self.reports, self.last = 0, dict[str, float]()

    def __call__(self, step: int, metrics: Metrics) -> None:
        self.reports += 1
        self.last = dict(metrics)
        if self.rule is None or self.reports < self.rule.warmup or not self.front:
            return
        costs = self._at_best(metrics)
        if costs is not None and any(dominates(member, costs) for member in self.front):
            raise Stopped(
                f"stopped after report {self.reports}: even with the margin it is dominated"
            )

    def _at_best(self, metrics: Metrics) -> Costs | None:
        """The best that the trial can still come to, as far as all of it is known."""
        known = {**self.trial.found, **metrics}
        if any(goal.name not in known for goal in self.goals.goals):
            return None
        assert self.rule is not None
        hoped = dict(known)
        for goal in self.goals.goals:
            margin = self.rule.margin.get(goal.name, 0.0)
            hoped[goal.name] += margin if goal.direction == "maximize" else -margin
        return self.goals.costs(self.goals.values(hoped))


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
    return "".join(lines).strip()


__all__ = ["Runner", "Worker"]
