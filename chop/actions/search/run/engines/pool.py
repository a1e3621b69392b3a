"""The base class of engines with several workers: who works on what, and for how long."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.run.engines.base import Event, Work, WorkerDied
from chop.registry import not_defined

logger = logging.getLogger(__name__)

STARTS = 3  # workers in a row that may be lost before one of them is ready


@dataclass(kw_only=True)
class Member:
    """A worker of a pool, and its work."""

    ready: bool = False
    work: Work | None = None
    left: set[int] = field(default_factory=set)  # trials of the work without an outcome
    since: float = 0.0


M = TypeVar("M", bound=Member)


class PoolEngine(Generic[M]):
    """Hands work to members that are ready, and replaces those that die or take too long."""

    in_order = False

    def __init__(self, slots: int, trial_timeout: float | None) -> None:
        self.slots, self._timeout = slots, trial_timeout
        self._members: list[M] = []
        self._waiting: deque[Work] = deque()
        self._lost_starts, self._warnings = 0, set[str]()  # the warnings that were logged

    def _send(self, member: M, work: Work) -> None:
        """Have a member begin with its work."""
        raise not_defined(self, "_send", "pool")

    def _answered(self, seconds: float) -> Iterable[M]:
        """Return the members with a message, after so many seconds at most."""
        raise not_defined(self, "_answered", "pool")

    def _receive(self, member: M) -> list[Event]:
        """Return the events in a message of a member."""
        raise not_defined(self, "_receive", "pool")

    def _kill(self, member: M) -> None:
        """End a member that takes too long, and start another in its place."""
        raise not_defined(self, "_kill", "pool")

    def free(self) -> int:
        busy = sum(member.work is not None for member in self._members)
        return self.slots - len(self._waiting) - busy

    def submit(self, work: Work) -> None:
        self._waiting.append(work)
        self._hand_out()

    def _hand_out(self) -> None:
        """Give work to members that are ready; one that never starts holds nothing up."""
        for member in self._members:
            if self._waiting and member.ready and member.work is None:
                member.work, member.since = self._waiting.popleft(), time.monotonic()
                member.left = set(member.work.numbers)
                self._send(member, member.work)

    def wait(self, seconds: float) -> Sequence[Event]:
        until = time.monotonic() + seconds
        while True:
            next_deadline = min(map(self._deadline, self._members))
            left = max(0.0, min(until, next_deadline) - time.monotonic())
            events = [e for member in self._answered(left) for e in self._receive(member)]
            now = time.monotonic()
            for member in [m for m in self._members if self._deadline(m) <= now]:
                self._kill(member)
                events += [self._overdue(number) for number in sorted(member.left)]
            self._hand_out()
            if events or time.monotonic() >= until:
                return events

    def _deadline(self, member: M) -> float:
        if member.work is None or self._timeout is None:
            return float("inf")
        return member.since + self._timeout * len(member.work.numbers)

    def _overdue(self, number: int) -> Outcome:
        assert self._timeout is not None
        error = f"the trial took longer than trial_timeout = {self._timeout:g} seconds"
        return Outcome(number, "FAIL", seconds=self._timeout, error=error)

    def _take(self, member: M, message: Outcome | str) -> list[Event]:
        """Return the outcome that a member has sent; log each warning once."""
        if isinstance(message, str):
            if message not in self._warnings:
                self._warnings.add(message)
                logger.warning("%s", message)
            return []
        member.left.discard(message.number)
        member.work = member.work if member.left else None
        return [message]

    def _lost(self, member: M, reason: str) -> list[Event]:
        """Return the trials that a member has lost with its process."""
        return [WorkerDied(number, reason) for number in sorted(member.left)]
