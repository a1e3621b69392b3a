"""What an engine is: it takes tasks while it has slots, and gives events."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chop.actions.search.metrics import stackable
from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.metrics.rungs import KnownTrials
from chop.actions.search.run.worker import Worker
from chop.actions.search.samplers.base import Chosen

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """A design to measure, and what it has to be better than."""

    number: int
    chosen: Chosen
    known: KnownTrials = field(default_factory=KnownTrials)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The trials whose outcomes are wanted."""
        return (self.number,)


@dataclass(frozen=True)
class Group:
    """Designs that are trained together, and those of them whose outcomes are there already."""

    tasks: tuple[Task, ...]
    known: frozenset[int] = frozenset()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The trials whose outcomes are wanted."""
        return tuple(task.number for task in self.tasks if task.number not in self.known)


Work = Task | Group


@dataclass(frozen=True)
class WorkerDied:
    """The process that measured a trial is gone, and with it the trial."""

    number: int
    reason: str


@dataclass(frozen=True)
class Note:
    """What a worker has to say, where nobody reads its log."""

    text: str


Event = Outcome | WorkerDied


class Engine(Protocol):
    """Runs tasks."""

    slots: int  # tasks that run at the same time
    in_order: bool  # whether outcomes come in the order of tasks

    def free(self) -> int:
        """How many more tasks it can take now."""

    def submit(self, work: Work) -> None:
        """Begin with a task or a group; there has to be a free slot."""

    def wait(self, seconds: float) -> Sequence[Event]:
        """What has happened, as soon as something has; nothing after so many seconds."""

    def close(self) -> None:
        """Stop everything that runs."""


def overdue(number: int, timeout: float) -> Outcome:
    """What becomes of a trial that was killed because it took too long."""
    said = f"the trial took longer than trial_timeout = {timeout:g} seconds"
    return Outcome(number, "FAIL", seconds=timeout, error=said)


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


class WarningRelay:
    """Passes on what workers say, each thing once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def pass_on(self, note: Note) -> None:
        if note.text not in self._said:
            self._said.add(note.text)
            logger.warning("%s", note.text)


class _LogCapture(logging.Handler):
    """Writes down what is said."""

    def __init__(self) -> None:
        super().__init__()
        self._notes: list[Note] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._notes.append(Note(record.getMessage()))

    def taken(self) -> list[Note]:
        notes, self._notes = self._notes, []
        return notes


@contextlib.contextmanager
def _captured_logs(source: logging.Logger) -> Iterator[_LogCapture]:
    """What a logger says meanwhile goes to a pad and nowhere else."""
    pad, level = _LogCapture(), source.level
    source.setLevel(logging.WARNING)
    source.propagate = False
    source.addHandler(pad)
    try:
        yield pad
    finally:
        source.removeHandler(pad)
        source.setLevel(level)
        source.propagate = True


def reported(worker: Worker, work: Work) -> Iterator[Outcome | Note]:
    """What `measured` gives and, before it, why some designs are not trained together."""
    with _captured_logs(stackable.logger) as pad:
        for outcome in measured(worker, work):
            yield from pad.taken()
            yield outcome


def measured(worker: Worker, work: Work) -> Iterator[Outcome]:
    """The outcomes that are wanted, in the order of their numbers, each as soon as it is there."""
    if isinstance(work, Task):
        yield worker.run(work.number, work.chosen, work.known)
        return
    together = worker.run_together([(t.number, t.chosen, t.known) for t in work.tasks])
    for task in work.tasks:
        if task.number not in work.known:
            found = together.get(task.number)
            yield found or worker.run(task.number, task.chosen, task.known)
