"""The loop of a search: ask for trials, measure them, store and tell their outcomes."""

from __future__ import annotations

import bisect
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chop.actions.search.metrics.base import RungScore
from chop.actions.search.metrics.objectives import Front, Objectives
from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.metrics.rungs import KnownTrials
from chop.actions.search.run.engines.base import Engine, Group, Task, WorkerDied
from chop.actions.search.run.trial_table import Phase, TrialEntry, TrialTable
from chop.actions.search.samplers.base import Strategy
from chop.actions.search.spec.settings import Settings
from chop.actions.search.store.rows import StoredTrial
from chop.actions.search.store.study_store import StudyStore

logger = logging.getLogger(__name__)

TICK = 0.5  # seconds after which the loop looks at signals and at the clock
MAX_MOMENTS = 2048  # at which trials ended, of a forecast
MEASURED = 64  # trials from which a growing time per trial can be told from noise


class Forecast:
    """Estimates the time left; each trial counts with its sampling, measuring and writing.

    The time of a trial may grow, as that of a sampler that looks at all earlier trials: growth is
    expected to continue for as many trials as it was seen.
    """

    def __init__(self) -> None:
        self._done: list[int] = []  # trials that had ended at each moment
        self._seconds: list[float] = []

    def note(self, done: int, seconds: float) -> None:
        """Take how many trials had ended at a moment."""
        self._done.append(done)
        self._seconds.append(seconds)
        if len(self._done) > MAX_MOMENTS:  # the last one stays
            self._done, self._seconds = self._done[1::2], self._seconds[1::2]

    def seconds_left(self, total: int) -> float | None:
        """Return the time that the trials up to `total` take, None before any has ended."""
        if len(self._done) < 2:
            return None
        first = min(1, len(self._done) - 2)  # without the start of the workers, once there is more
        count, left = self._done[-1] - self._done[first], max(total - self._done[-1], 0)
        if count < MEASURED:
            return left * self._per_trial(first, -1)
        middle = bisect.bisect_left(self._done, self._done[first] + count / 2)
        if not first < middle < len(self._done) - 1:
            return left * self._per_trial(first, -1)
        before, recent = self._per_trial(first, middle), self._per_trial(middle, -1)
        growth = max(recent - before, 0.0) / (count / 2)  # per trial
        now = recent + growth * count / 4
        growing = min(left, count)
        steady = (left - growing) * (now + growth * growing)
        return growing * (now + growth * growing / 2) + steady

    def _per_trial(self, start: int, end: int) -> float:
        """Return the mean seconds of a trial between two of the moments."""
        count = max(self._done[end] - self._done[start], 1)
        return (self._seconds[end] - self._seconds[start]) / count


@dataclass
class Progress:
    """How far a search has come."""

    total: int | None
    done: int = 0
    failed: int = 0
    stopped: int = 0
    resumed: int = 0  # trials of earlier runs
    front: Front = field(default_factory=Front)
    began: float = field(default_factory=time.monotonic)
    group_size: int = 1  # trials that end together
    last_group_ended: float | None = None
    forecast: Forecast = field(default_factory=Forecast)

    @property
    def completed(self) -> int:
        return self.done - self.failed - self.stopped

    @property
    def per_second(self) -> float | None:
        """Trials per second; unknown before the first group has ended."""
        if self.group_size == 1:
            return (self.done - self.resumed) / max(time.monotonic() - self.began, 1e-9)
        if self.last_group_ended is None:
            return None
        whole = self.done - self.done % self.group_size
        return (whole - self.resumed) / max(self.last_group_ended - self.began, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """The expected time until the last trial ends; unknown before the first group has ended."""
        return None if self.total is None else self.forecast.seconds_left(self.total)

    def begin(self) -> None:
        """Take the time from which trials are measured."""
        self.forecast.note(self.done, time.monotonic())

    def count(self, outcome: Outcome) -> None:
        """Count a trial that has ended."""
        self.done += 1
        if self.done % self.group_size == 0:
            self.last_group_ended = time.monotonic()
            self.forecast.note(self.done, self.last_group_ended)
        self.failed += outcome.state == "FAIL"
        self.stopped += outcome.state == "PRUNED"


class TrialFailed(ValueError):
    """A trial failed in a search with `fail_fast`."""


class SearchLoop:
    """Asks the sampler for trials, has an engine measure them, stores and tells their outcomes.

    Trial `n` is asked for when exactly the trials up to `n - in_flight` have been told, so that
    neither the number of workers nor an interruption changes the table of trials.
    """

    def __init__(
        self,
        strategy: Strategy,
        engine: Engine,
        store: StudyStore,
        settings: Settings,
        group_size: int = 1,
        group_stored: Callable[[int], None] = lambda first: None,
        visualizer: Any = None,
    ) -> None:
        self.strategy, self.engine, self.store = strategy, engine, store
        self.settings, self.objectives = settings, settings.objectives
        self.show: Callable[[Progress], None] = lambda progress: None
        self.visualizer = visualizer
        self.group_stored = group_stored  # is called with the first number of each stored group
        self.in_flight = settings.in_flight
        if not strategy.looks_back and not settings.compares:  # the order changes nothing
            self.in_flight = max(self.in_flight, 2 * engine.slots * group_size)
        self.progress = Progress(settings.n_trials, group_size=group_size)
        self.first_failure: Outcome | None = None
        self._trials = TrialTable(group_size)
        self._to_ask = self._to_tell = 0  # the numbers of the next trials to ask for and to tell
        self._written = 0  # the trials before this number are in the storage, finished or not
        self._exhausted = False  # whether the sampler has no more designs
        self._earlier: dict[int, StoredTrial] = {}  # of an earlier run, not asked for yet
        self._rung_scores: dict[int, tuple[RungScore, ...]] = {}  # of told trials, by rung

    def resume(self, stored: Sequence[StoredTrial]) -> None:
        """Continue with the trials of an earlier run."""
        self._written, limit = len(stored), self.settings.n_trials
        self._earlier = {trial.number: trial for trial in stored if trial.number < limit}
        for trial in self._earlier.values():
            if trial.outcome is not None:
                self._count(trial.outcome)
        self.progress.resumed, self.progress.last_group_ended = self.progress.done, None
        self.progress.forecast = Forecast()

    def run(self, interrupted: Callable[[], object] = lambda: None) -> None:
        """Search until there are enough trials, no more designs, no more time, or a signal."""
        until = time.monotonic() + (self.settings.timeout or float("inf"))
        if len(self._earlier) == self.settings.n_trials == self.progress.done:
            self._skip_all()
        self._ask_and_tell()  # replays what earlier runs have told
        self.progress.begin()
        while not self._finished() and not interrupted():
            late = time.monotonic() >= until
            if late and self.engine.free() == self.engine.slots:
                logger.info("Stopped after timeout = %g seconds", self.settings.timeout)
                return
            if not late:
                self._submit()
            events = self.engine.wait(TICK)
            if not late and not self.engine.in_order:
                self._submit()  # workers go on while outcomes are stored
            for event in events:
                outcome = self._retry(event) if isinstance(event, WorkerDied) else event
                if outcome is not None:
                    self._store(outcome)
            self._ask_and_tell()
            self.show(self.progress)

    def _skip_all(self) -> None:
        """Skip asking and telling when all trials are done: a sampler takes minutes to replay."""
        self._to_ask = self._to_tell = self.settings.n_trials
        for _, trial in sorted(self._earlier.items()):
            assert trial.outcome is not None
            self._log_metrics(trial.outcome)
        self._earlier.clear()

    def _log_metrics(self, outcome: Outcome) -> None:
        if self.visualizer is not None and outcome.scaled:
            self.visualizer.log_metrics(metrics=dict(outcome.scaled), step=outcome.number)

    def _finished(self) -> bool:
        all_asked = self._exhausted or self._to_ask >= self.settings.n_trials
        return all_asked and self._to_tell >= self._to_ask

    # --- asking and telling, in the order of numbers

    def _ask_and_tell(self) -> None:
        while True:
            if self._may_ask():
                self._ask()
            elif self._to_tell in self._trials and self._trials[self._to_tell].phase is Phase.DONE:
                self._tell(self._trials.move(self._to_tell, Phase.TOLD))
            else:
                return

    def _may_ask(self) -> bool:
        last = self._trials.numbers_of_group(self._to_ask)[-1]
        has_room = self._to_tell > last - self.in_flight
        return has_room and self._to_ask < self.settings.n_trials and not self._exhausted

    def _ask(self) -> None:
        number, stored = self._to_ask, self._earlier.pop(self._to_ask, None)
        if stored is not None:
            self._adopt(stored)
        else:
            chosen = self.strategy.ask(number)
            if chosen is None:
                self._exhausted = True
                self.progress.total = number
                logger.info("All %d designs of the space have been tried", number)
                return
            if not isinstance(chosen, Mapping):
                kind = type(self.strategy).__name__
                raise ValueError(
                    f"{kind}.ask must return a design as a dictionary, or None, not {chosen!r:.80}"
                )
            notes = self.strategy.notes(number)
            self._trials.add(TrialEntry(number, chosen, notes, self._known_trials()))
        self._to_ask += 1

    def _adopt(self, stored: StoredTrial) -> None:
        """Continue with a trial of an earlier run, which may not have finished it."""
        number, known = stored.number, self._known_trials()
        self.strategy.adopt(number, stored.chosen, stored.notes)
        self._trials.add(TrialEntry(number, stored.chosen, stored.notes, known, reserved=True))
        if stored.outcome is not None:
            self._trials.move(number, Phase.DONE, stored.outcome)

    def _known_trials(self) -> KnownTrials:
        front = () if self.settings.early_stopping is None else self.progress.front.costs
        return KnownTrials(front, self._rung_scores)

    def _tell(self, entry: TrialEntry) -> None:
        outcome = entry.outcome
        assert outcome is not None
        self.strategy.tell(entry.number, *self._values_for_sampler(outcome))
        if outcome.feasible:
            assert outcome.values is not None
            self.progress.front.add(entry.number, self.objectives.costs(outcome.values))
        for rung, score in outcome.rungs.items():  # a new table: trials hold on to the old one
            scores = (*self._rung_scores.get(rung, ()), score)
            self._rung_scores = {**self._rung_scores, rung: scores}
        self._to_tell += 1
        if self._to_tell % self._trials.group_size == 0:
            self._trials.drop_group(entry.number)
        self._log_metrics(outcome)

    def _values_for_sampler(
        self, outcome: Outcome
    ) -> tuple[Sequence[float] | None, Sequence[float]]:
        """Return objectives and violations; a stopped trial has those that it reported last."""
        if outcome.state == "COMPLETE":
            return outcome.values, outcome.violations
        metrics, objectives = {**outcome.hardware, **outcome.software}, self.objectives
        known = all(math.isfinite(metrics.get(name, math.nan)) for name in objectives.metrics)
        if outcome.state != "PRUNED" or not known:
            return None, outcome.violations
        return objectives.values(metrics), objectives.violations(metrics)

    # --- measuring

    def _submit(self) -> None:
        """Give the trials that wait to the engine, as long as it has free slots."""
        if self._trials.group_size > 1:
            self._submit_groups()
            return
        for entry in self._trials.in_phase(Phase.ASKED):
            if self.engine.free() == 0:
                return
            self._submit_one(entry)

    def _submit_one(self, entry: TrialEntry) -> None:
        self._trials.move(entry.number, Phase.RUNNING)
        self.engine.submit(_task(entry))

    def _submit_groups(self) -> None:
        waiting = list(self._trials.in_phase(Phase.ASKED))
        for entry in waiting:
            if entry.alone and self.engine.free() > 0:
                self._submit_one(entry)
        for first in sorted({self._trials.numbers_of_group(e.number)[0] for e in waiting}):
            if self.engine.free() > 0:
                self._submit_group(self._trials.group(first))

    def _submit_group(self, members: Sequence[TrialEntry]) -> None:
        """Measure a group, unless some of it is under way or has to be measured alone."""
        wanted = [entry for entry in members if entry.outcome is None]
        if not all(entry.phase is Phase.ASKED and not entry.alone for entry in wanted):
            return
        for entry in wanted:
            self._trials.move(entry.number, Phase.RUNNING)
        finished = frozenset(entry.number for entry in members if entry.outcome is not None)
        self.engine.submit(Group(tuple(map(_task, members)), finished))

    def _retry(self, event: WorkerDied) -> Outcome | None:
        """Run a trial again after its process died; return its failure after the last retry."""
        entry = self._trials[event.number]
        entry.deaths += 1
        if entry.deaths > self.settings.retries:
            times = "once" if entry.deaths == 1 else f"{entry.deaths} times"
            return Outcome(event.number, "FAIL", error=f"{event.reason} ({times})")
        logger.warning("Trial %d: %s; running it again", event.number, event.reason)
        # the last attempt tells which trial of a group it is that kills the process
        entry.alone = self._trials.group_size > 1 and entry.deaths == self.settings.retries
        self._trials.move(event.number, Phase.ASKED)
        return None

    # --- storing

    def _store(self, outcome: Outcome) -> None:
        entry = self._trials[outcome.number]
        if not entry.reserved:
            self._reserve_up_to(outcome.number)
            self._written += 1
        self.store.add(entry.chosen, entry.notes, outcome, reserved=entry.reserved)
        self._trials.move(outcome.number, Phase.DONE, outcome)
        self._count(outcome)
        members = self._trials.group(outcome.number)
        if self._trials.group_size > 1 and all(member.outcome for member in members):
            self.group_stored(members[0].number)
        if outcome.state == "FAIL":
            if self.settings.fail_fast:
                raise TrialFailed(f"trial {outcome.number} failed: {outcome.cause}")
            logger.warning("Trial %d failed: %s", outcome.number, outcome.cause)

    def _reserve_up_to(self, end: int) -> None:
        """Write the unfinished trials before `end`: storages number trials in their order."""
        while self._written < end:
            entry = self._trials[self._written]
            self.store.reserve(entry.number, entry.chosen, entry.notes)
            entry.reserved = True
            self._written += 1

    def _count(self, outcome: Outcome) -> None:
        self.progress.count(outcome)
        first = self.first_failure
        if outcome.state == "FAIL" and (first is None or outcome.number < first.number):
            self.first_failure = outcome


def _task(entry: TrialEntry) -> Task:
    return Task(entry.number, entry.chosen, entry.known)


def front_of(outcomes: Iterable[Outcome], objectives: Objectives) -> list[Outcome]:
    """Return the feasible outcomes on the Pareto front, in the order of their numbers."""
    front, feasible = Front(), {o.number: o for o in outcomes if o.feasible and o.values}
    for number, outcome in sorted(feasible.items()):
        front.add(number, objectives.costs(outcome.values or ()))
    return [feasible[number] for number in front.numbers]
