"""Ask, run, record, tell: the loop of a search, in an order that no number of workers changes."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from chop.actions.search.engines.base import Died, Engine, Group, Task
from chop.actions.search.goals import Front, Goals
from chop.actions.search.outcome import Outcome
from chop.actions.search.record import Record, Stored
from chop.actions.search.rungs import Before, Mark
from chop.actions.search.settings import Settings
from chop.actions.search.strategies.base import Chosen, Strategy

logger = logging.getLogger(__name__)

TICK = 0.5  # seconds between looks at what others do


@dataclass(frozen=True)
class Asked:
    """A design that the strategy wants to know about, and what was known when it asked."""

    chosen: Chosen
    notes: Mapping[str, Any]
    before: Before


class Others(Protocol):
    """Processes on other machines that take part, as far as this one knows of them."""

    def present(self) -> bool:
        """Whether somebody waits for trials."""

    def has(self, worker: str) -> bool:
        """Whether that one is there."""

    def lost(self) -> Iterable[int]:
        """Trials whose workers have not been heard of for too long."""


class Nobody:
    """A search that nobody has joined."""

    def present(self) -> bool:
        return False

    def has(self, worker: str) -> bool:
        return False

    def lost(self) -> Iterable[int]:
        return ()


@dataclass
class Progress:
    """Where a search is."""

    total: int | None
    done: int = 0
    failed: int = 0
    stopped: int = 0
    resumed: int = 0  # trials that were there before
    front: Front = field(default_factory=Front)
    began: float = field(default_factory=time.monotonic)
    group: int = 1  # trials that end together
    groups_ended: float | None = None  # the last of them

    @property
    def completed(self) -> int:
        return self.done - self.failed - self.stopped

    @property
    def per_second(self) -> float | None:
        """Trials; unknown before the first group has ended."""
        if self.group == 1:
            return (self.done - self.resumed) / max(time.monotonic() - self.began, 1e-9)
        if self.groups_ended is None:
            return None
        whole = self.done - self.done % self.group
        return (whole - self.resumed) / max(self.groups_ended - self.began, 1e-9)


class Failed(ValueError):
    """A trial failed, and the file says that the search shall then stop."""


class Coordinator:
    """The one process that asks and tells; there is one for each study."""

    def __init__(
        self,
        strategy: Strategy,
        engine: Engine,
        record: Record,
        settings: Settings,
        *,
        worker_name: str = "",
        others: Others | None = None,
        show: Callable[[Progress], None] = lambda progress: None,
        group: int = 1,
        recorded: Callable[[int], None] = lambda first: None,
    ) -> None:
        self.strategy, self.engine, self.record = strategy, engine, record
        self.settings, self.goals = settings, settings.goals
        self.name, self.show = worker_name, show
        self.others: Others = others or Nobody()
        self.group = group  # trials that are asked and measured together
        self.recorded = recorded  # is told the first trial of each group that is in the storage
        self.in_flight = settings.in_flight
        if not strategy.looks_back and not settings.compares:  # nothing depends on it
            self.in_flight = max(self.in_flight, 2 * engine.slots * group)
        self.first_failure: Outcome | None = None
        self._asked: dict[int, Asked] = {}  # of groups that are not yet told
        self._outcomes: dict[int, Outcome] = {}  # of groups that are not yet told
        self._here: set[int] = set()  # with our own engine
        self._waiting: deque[int] = deque()  # asked, not yet begun
        self._published: set[int] = set()  # in the storage, not finished
        self._written = 0  # trials in the storage: those up to here, finished or not
        self._stored: dict[int, Stored] = {}  # of an earlier run
        self._deaths: dict[int, int] = {}
        self._alone: set[int] = set()  # of groups that bring processes down; ours until they end
        self._marks: dict[int, tuple[Mark, ...]] = {}  # of those told, by rung
        self.visualizer: Any = None
        self._next = self._told = 0
        self._exhausted = False
        self.progress = Progress(self._limit, group=group)

    @property
    def _limit(self) -> int:
        return self.settings.n_trials

    # --- the fixed order

    def _advance(self) -> None:
        """Ask for what may be asked, and tell what may be told."""
        while True:
            if self._may_ask():
                self._ask()
            elif self._told in self._outcomes:
                self._tell(self._outcomes[self._told])
            else:
                return

    def _may_ask(self) -> bool:
        last = self._group_of(self._next)[-1]
        room = self._told > last - self.in_flight
        return room and self._next < self._limit and not self._exhausted

    def _group_of(self, number: int) -> range:
        """The numbers of the trials that are measured together with one."""
        first = number - number % self.group
        return range(first, first + self.group)

    def _ask(self) -> None:
        number, before = self._next, self._stored.pop(self._next, None)
        if before is not None:
            self.strategy.adopt(number, before.chosen, before.notes)
            self._asked[number] = Asked(before.chosen, before.notes, self._before())
            if before.outcome is not None:
                self._outcomes[number] = before.outcome
            else:
                self._published.add(number)
                self._reclaim(before)
        else:
            chosen = self.strategy.ask(number)
            if chosen is None:
                self._exhausted = True
                self.progress.total = number
                logger.info("All %d designs of the space have been tried", number)
                return
            self._asked[number] = Asked(chosen, self.strategy.notes(number), self._before())
            self._waiting.append(number)
        self._next += 1

    def _reclaim(self, before: Stored) -> None:
        """A trial that an earlier run did not finish, unless a guest is still at it."""
        if not before.waiting:
            if self.others.present() and self.others.has(before.worker):
                return
            if not self.record.requeue(before.number):
                return  # it was finished a moment ago
        self._wait_with(before.number)

    def _wait_with(self, number: int) -> None:
        if number not in self._waiting:
            self._waiting = deque(sorted([*self._waiting, number]))

    def _before(self) -> Before:
        front = () if self.settings.early_stopping is None else self.progress.front.costs
        return Before(front, self._marks, self._told)

    def _tell(self, out: Outcome) -> None:
        self.strategy.tell(out.number, *self._lesson(out))
        if out.feasible:
            assert out.values is not None
            self.progress.front.add(out.number, self.goals.costs(out.values))
        for rung, mark in out.marks.items():  # into a new table: who was asked has the old one
            self._marks = {**self._marks, rung: (*self._marks.get(rung, ()), mark)}
        self._told += 1
        if self._told % self.group == 0:
            self._forget_group(out.number)
        self._log(out)

    def _lesson(self, out: Outcome) -> tuple[Sequence[float] | None, Sequence[float]]:
        """Objectives and violations to learn from; those of a stopped trial are its last ones."""
        if out.state == "COMPLETE":
            return out.values, out.violations
        metrics, goals = {**out.hardware, **out.software}, self.goals
        known = all(math.isfinite(metrics.get(name, math.nan)) for name in goals.metrics)
        if out.state != "PRUNED" or not known:
            return None, out.violations
        return goals.values(metrics), goals.violations(metrics)

    def _forget_group(self, number: int) -> None:
        for member in self._group_of(number):
            self._asked.pop(member, None)
            self._outcomes.pop(member, None)

    # --- the loop

    def resume(self, stored: Iterable[Stored]) -> None:
        """Take over what an earlier run has recorded."""
        every = list(stored)
        self._written = len(every)
        self._stored = {trial.number: trial for trial in every if trial.number < self._limit}
        finished = [t.outcome for t in self._stored.values() if t.outcome is not None]
        for out in finished:
            self._count(out)
        self.progress.resumed, self.progress.groups_ended = self.progress.done, None

    def run(self, interrupted: Callable[[], object] = lambda: None) -> None:
        """Search until there are enough trials, no more designs, no more time, or a signal."""
        until = time.monotonic() + (self.settings.timeout or float("inf"))
        if len(self._stored) == self._limit == self.progress.done:
            self._skip_all()
        self._advance()
        while not self._finished() and not interrupted():
            late = time.monotonic() >= until
            if late and not self._running():
                logger.info("Stopped after timeout = %g seconds", self.settings.timeout)
                return
            if not late:
                self._begin()
            events = self.engine.wait(TICK)
            if not late and not self.engine.in_order:
                self._begin()  # nobody idles while we write down what has come
            for event in events:
                self._handle(event)
            self._look_around()
            self._advance()
            self.show(self.progress)

    def _skip_all(self) -> None:
        """All trials are done: nothing is asked any more, so the strategy need not learn of them.

        A sampler that is told thousands of trials one by one takes minutes.
        """
        self._next = self._told = self._limit
        outcomes = [trial.outcome for _, trial in sorted(self._stored.items())]
        for out in filter(None, outcomes):
            self._log(out)
        self._stored.clear()

    def _log(self, out: Outcome) -> None:
        if self.visualizer is not None and out.scaled:
            self.visualizer.log_metrics(metrics=dict(out.scaled), step=out.number)

    def _finished(self) -> bool:
        over = self._exhausted or self._next >= self._limit
        return over and self._told >= self._next

    def _running(self) -> bool:
        return self.engine.free() < self.engine.slots

    def _begin(self) -> None:
        """Give waiting trials to the engine, and offer the rest to others."""
        if self.group > 1:
            self._begin_groups()
            return
        if self.others.present():
            self._offer()
        while self._waiting and self.engine.free() > 0:
            number = self._waiting.popleft()
            if self._is_mine(number):
                self.engine.submit(self._task(number))

    def _is_mine(self, number: int) -> bool:
        """Take a trial, which others may have seen; False if somebody else measures it."""
        seen = number in self._published and number not in self._alone
        if seen and not self.record.claim(number, self.name):
            return False
        self._here.add(number)
        return True

    def _task(self, number: int) -> Task:
        asked = self._asked[number]
        return Task(number, asked.chosen, asked.before)

    def _begin_groups(self) -> None:
        """Give whole groups to the engine, and offer the rest to others, as wholes too."""
        # one who joins while this process trains finds work at once, if there is any to spare
        if self.others.present() or self.in_flight > self.group:
            self._offer()
        for first in sorted({self._group_of(number)[0] for number in self._waiting}):
            self._begin_alone(first)
            if self.engine.free() > 0:
                self._begin_group(first)

    def _begin_alone(self, first: int) -> None:
        """Trials of a group that has brought processes down: who of them was it?"""
        for number in self._alone.intersection(self._group_of(first), self._waiting):
            if self.engine.free() > 0:
                self._waiting.remove(number)
                self._is_mine(number)
                self.engine.submit(self._task(number))

    def _begin_group(self, first: int) -> None:
        """Begin with a group unless others have some of it: it is theirs who get its first."""
        numbers = [n for n in self._group_of(first) if n in self._asked]
        known = frozenset(n for n in numbers if n in self._outcomes)
        wanted = [n for n in numbers if n not in known]
        if not all(n in self._waiting and n not in self._alone for n in wanted):
            return
        self._waiting.remove(wanted[0])
        if not self._is_mine(wanted[0]):
            return
        for number in wanted[1:]:
            self._waiting.remove(number)
            self._is_mine(number)
            self._here.add(number)
        self.engine.submit(Group(tuple(self._task(n) for n in numbers), known))

    def _offer(self) -> None:
        """Let others see all that is to be measured."""
        if self._here or self._waiting:
            self._publish_up_to(max(self._here.union(self._waiting)) + 1)

    def _publish_up_to(self, end: int) -> None:
        """Let others see the trials before `end`: a storage numbers them in their order."""
        while self._written < end:
            number = self._written
            asked, ours = self._asked[number], number in self._here or number in self._alone
            last = max(n for n in self._group_of(number) if n in self._asked)
            worker = self.name if ours else None
            self.record.publish(number, asked.chosen, asked.notes, worker, asked.before, last)
            self._published.add(number)
            self._written += 1

    def _handle(self, event: Outcome | Died) -> None:
        self._here.discard(event.number)
        if event.number not in self._asked or event.number in self._outcomes:
            return  # a guest that we thought gone was faster
        out = self._again(event) if isinstance(event, Died) else event
        if out is None:
            return
        self._store(out)

    def _close_group(self, number: int) -> None:
        members = [n for n in self._group_of(number) if n in self._asked]
        if self.group > 1 and all(n in self._outcomes for n in members):
            self.recorded(members[0])

    def _again(self, event: Died) -> Outcome | None:
        """A trial whose process died is run again, until it has killed too many."""
        deaths = self._deaths[event.number] = self._deaths.get(event.number, 0) + 1
        if deaths > self.settings.retries:
            said = f"{event.reason}, for the {deaths}. time"
            return Outcome(event.number, "FAIL", error=said, worker=self.name)
        logger.warning("Trial %d: %s; it is run again", event.number, event.reason)
        self._wait_with(event.number)
        if self.group > 1 and deaths == self.settings.retries:
            self._alone.add(event.number)
        elif event.number in self._published:  # a guest that comes later may have it
            self.record.requeue(event.number)
        return None

    def _store(self, out: Outcome) -> None:
        asked = self._asked[out.number]
        if out.number in self._published:
            if not self.record.finish(out, urgent=self.others.present()):
                return
            self._published.discard(out.number)
        else:
            self._publish_up_to(out.number)  # those that take longer
            self.record.add(asked.chosen, asked.notes, out)
            self._written += 1
        self._take(out)

    def _take(self, out: Outcome) -> None:
        self._outcomes[out.number] = out
        self._count(out)
        self._close_group(out.number)
        if out.state == "FAIL":
            self._mind(out)

    def _mind(self, failed: Outcome) -> None:
        """Say what went wrong, wherever that was."""
        lines = (failed.error or "").strip().splitlines()
        reason = lines[-1] if lines else "no reason is known"
        if self.settings.fail_fast:
            raise Failed(f"trial {failed.number} failed: {reason}")
        logger.warning("Trial %d failed: %s", failed.number, reason)

    def _count(self, out: Outcome) -> None:
        self.progress.done += 1
        if self.progress.done % self.group == 0:
            self.progress.groups_ended = time.monotonic()
        self.progress.failed += out.state == "FAIL"
        self.progress.stopped += out.state == "PRUNED"
        first = self.first_failure
        if out.state == "FAIL" and (first is None or out.number < first.number):
            self.first_failure = out

    def _look_around(self) -> None:
        """What others have finished, and what they have dropped."""
        if not self.others.present() and not self._elsewhere():
            return
        for number in self.others.lost():
            if number in self._published and self.record.requeue(number):
                logger.warning("Trial %d: its worker is gone; it is run again", number)
                self._wait_with(number)
        elsewhere = self._elsewhere()
        for number in elsewhere & self.record.waiting() if elsewhere else ():
            self._wait_with(number)  # somebody has given it back
        # read after who is gone was found out, so that nobody's last outcome is missed
        for out in self.record.outcomes_of(self._published):
            self._published.discard(out.number)
            if out.number in self._waiting:
                self._waiting.remove(out.number)
            self._take(out)

    def _elsewhere(self) -> set[int]:
        """Trials that somebody else has, or had when we last looked."""
        return self._published.difference(self._waiting, self._here)


def front_of(outcomes: Iterable[Outcome], goals: Goals) -> list[Outcome]:
    """The feasible outcomes that none of the others dominates, in the order of their numbers."""
    front, found = Front(), {}
    for out in sorted(outcomes, key=lambda out: out.number):
        if out.feasible and out.values is not None:
            front.add(out.number, goals.costs(out.values))
            found[out.number] = out
    return [found[number] for number in front.numbers]
