"""What an engine is: it takes tasks while it has slots, and gives events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from chop.actions.search.goals import Costs
from chop.actions.search.outcome import Outcome
from chop.actions.search.strategies.base import Chosen
from chop.actions.search.worker import Worker


@dataclass(frozen=True)
class Task:
    """A design to measure, and the front that it has to get onto."""

    number: int
    chosen: Chosen
    front: tuple[Costs, ...] = ()


@dataclass(frozen=True)
class Died:
    """The process that measured a trial is gone, and with it the trial."""

    number: int
    reason: str


Event = Outcome | Died


class Engine(Protocol):
    """Runs tasks."""

    slots: int  # tasks that run at the same time
    in_order: bool  # whether outcomes come in the order of tasks

    def free(self) -> int:
        """How many more tasks it can take now."""

    def submit(self, task: Task) -> None:
        """Begin with a task; there has to be a free slot."""

    def wait(self, seconds: float) -> Sequence[Event]:
        """What has happened, as soon as something has; nothing after so many seconds."""

    def close(self) -> None:
        """Stop everything that runs."""


def overdue(number: int, timeout: float) -> Outcome:
    """What becomes of a trial that was killed because it took too long."""
    said = f"the trial took longer than trial_timeout = {timeout:g} seconds"
    return Outcome(number, "FAIL", seconds=timeout, error=said)


class Here:
    """This process itself: one task at a time."""

    slots, in_order = 1, True

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._task: Task | None = None

    def free(self) -> int:
        return 0 if self._task else 1

    def submit(self, task: Task) -> None:
        self._task = task

    def wait(self, seconds: float) -> Sequence[Event]:
        if self._task is None:
            time.sleep(seconds)
            return []
        task, self._task = self._task, None
        return [self._worker.run(task.number, task.chosen, task.front)]

    def close(self) -> None:
        self._task = None
