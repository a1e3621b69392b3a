"""The interface of engines, which measure tasks, and the engine in this process."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from logging.handlers import BufferingHandler
from typing import Protocol

from chop.actions.search.metrics import groups
from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.metrics.rungs import KnownTrials
from chop.actions.search.run.worker import Worker
from chop.actions.search.samplers.base import Chosen


@dataclass(frozen=True)
class Task:
    """A design to measure, and the trials that it is compared with."""

    number: int
    chosen: Chosen
    known: KnownTrials = field(default_factory=KnownTrials)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the trials to measure."""
        return (self.number,)


@dataclass(frozen=True)
class Group:
    """Designs that are trained together; the outcomes of `known` ones are stored already."""

    tasks: tuple[Task, ...]
    known: frozenset[int] = frozenset()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the trials to measure."""
        return tuple(task.number for task in self.tasks if task.number not in self.known)


Work = Task | Group


@dataclass(frozen=True)
class WorkerDied:
    """A trial that was lost with its process."""

    number: int
    reason: str


Event = Outcome | WorkerDied


class Engine(Protocol):
    """Runs tasks."""

    slots: int  # tasks that run at the same time
    in_order: bool  # whether outcomes come in the order of tasks

    def free(self) -> int:
        """Return the number of free slots."""

    def submit(self, work: Work) -> None:
        """Begin with a task or a group; needs a free slot."""

    def wait(self, seconds: float) -> Sequence[Event]:
        """Return events as soon as there are any, or nothing after so many seconds."""

    def close(self) -> None:
        """Stop everything that runs."""


class InProcessEngine:
    """Measures one task at a time in this process."""

    slots, in_order = 1, True

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._running: Iterator[Outcome] = iter(())
        self._left = 0  # outcomes to come

    def free(self) -> int:
        return 0 if self._left else 1

    def submit(self, work: Work) -> None:
        self._running, self._left = measured(self._worker, work), len(work.numbers)

    def wait(self, seconds: float) -> Sequence[Event]:
        if not self._left:
            time.sleep(seconds)
            return []
        self._left -= 1
        return [next(self._running)]

    def close(self) -> None:
        self._left = 0


def reported(worker: Worker, work: Work) -> Iterator[Outcome | str]:
    """Yield outcomes and, before them, warnings that designs are not trained together."""
    source, capture = groups.logger, BufferingHandler(capacity=sys.maxsize)
    level, source.propagate = source.level, False
    source.setLevel(logging.WARNING)
    source.addHandler(capture)
    try:
        for outcome in measured(worker, work):
            yield from (record.getMessage() for record in capture.buffer)
            capture.flush()
            yield outcome
    finally:
        source.removeHandler(capture)
        source.setLevel(level)
        source.propagate = True


def measured(worker: Worker, work: Work) -> Iterator[Outcome]:
    """Yield the outcomes of a task or group, in the order of their numbers."""
    if isinstance(work, Task):
        yield worker.run(work.number, work.chosen, work.known)
        return
    together = worker.run_together([(t.number, t.chosen, t.known) for t in work.tasks])
    for task in work.tasks:
        if task.number not in work.known:
            outcome = together.get(task.number)
            yield outcome or worker.run(task.number, task.chosen, task.known)
