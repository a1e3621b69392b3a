"""Trials in processes of this machine: one that dies or hangs takes one trial with it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.run.engines.base import (
    Event,
    Note,
    WarningRelay,
    Work,
    WorkerDied,
    overdue,
)
from chop.processes import import_path

STARTS = 3  # processes in a row that may be killed before one of them is ready
# -P, and folders that are listed one by one: a worker imports from where the search does alone
START = (
    "import sys; pipe, *sys.path = sys.argv[1:]; "
    "from chop.actions.search.run.engines.child import main; main(int(pipe))"
)
SIGNALS = (signal.SIGINT, signal.SIGTERM)  # are for the search itself, which then ends us


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    pipe: Connection
    ready: bool = False
    task: Work | None = None
    left: set[int] = field(default_factory=set)  # trials of the task that are not known yet
    since: float = 0.0


class ProcessEngine:
    """`slots` processes that each have the study in memory."""

    in_order = False

    def __init__(self, packed: bytes, slots: int, trial_timeout: float | None = None) -> None:
        self.slots, self._packed, self._timeout = slots, packed, trial_timeout
        self._killed_starts, self._warnings = 0, WarningRelay()
        self._children = [self._spawned() for _ in range(slots)]
        for child in self._children:  # which all load their libraries meanwhile
            self._send(child, packed)

    def _spawned(self) -> _Child:
        ours, theirs = Pipe()
        with _blocked():
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", START, str(theirs.fileno()), *import_path()],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        theirs.close()
        return _Child(process, ours)

    def _send(self, child: _Child, what: Any) -> None:
        # one that has died is noticed by `wait`
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            child.pipe.send(what)

    def free(self) -> int:
        return sum(child.task is None for child in self._children)

    def submit(self, work: Work) -> None:
        idle = [child for child in self._children if child.task is None]
        child = max(idle, key=lambda child: child.ready)
        child.task, child.left = work, set(work.numbers)
        if child.ready:
            child.since = time.monotonic()
            self._send(child, work)

    def wait(self, seconds: float) -> Sequence[Event]:
        until = time.monotonic() + seconds
        while True:
            left = max(0.0, min(until, self._next_deadline()) - time.monotonic())
            ready = wait([child.pipe for child in self._children], left)
            events = [e for child in self._of(ready) for e in self._heard(child)]
            events += [e for child in self._late() for e in self._killed(child)]
            if events or time.monotonic() >= until:
                return events

    def _of(self, pipes: Sequence[Any]) -> list[_Child]:
        return [child for child in self._children if child.pipe in pipes]

    def _heard(self, child: _Child) -> list[Event]:
        try:
            said = child.pipe.recv()
        except (EOFError, OSError):
            return self._buried(child)
        if isinstance(said, Outcome):
            child.left.discard(said.number)
            child.task = child.task if child.left else None
            return [said]
        if isinstance(said, Note):
            self._warnings.pass_on(said)
            return []
        if isinstance(said, Exception):
            raise said
        child.ready, child.since, self._killed_starts = True, time.monotonic(), 0
        if child.task is not None:
            self._send(child, child.task)
        return []

    def _buried(self, child: _Child) -> list[Event]:
        """Its trial is free again, and another process takes its place."""
        code = child.process.wait()
        child.pipe.close()
        if not child.ready:
            self._count_lost_start(code)
        following = self._children[self._children.index(child)] = self._spawned()
        self._send(following, self._packed)
        if child.task is None:
            return []
        if not child.ready:  # the trial had not begun
            following.task, following.left = child.task, child.left
            return []
        reason = f"its process ended with {_said(code)}"
        return [WorkerDied(number, reason) for number in sorted(child.left)]

    def _count_lost_start(self, code: int) -> None:
        """What ends by itself would do so again; what was killed may have had bad luck."""
        self._killed_starts += 1
        if code >= 0 or self._killed_starts >= STARTS:
            raise ChildProcessError(
                f"a worker ended with {_said(code)} before it was ready; see its messages above"
            )

    def _deadline(self, child: _Child) -> float:
        if child.task is None or self._timeout is None or not child.ready:
            return float("inf")
        return child.since + self._timeout * len(child.task.numbers)

    def _next_deadline(self) -> float:
        return min(self._deadline(child) for child in self._children)

    def _late(self) -> list[_Child]:
        now = time.monotonic()
        return [child for child in self._children if self._deadline(child) <= now]

    def _killed(self, child: _Child) -> list[Event]:
        assert child.task is not None
        assert self._timeout is not None
        child.process.kill()
        self._buried(child)
        return [overdue(number, self._timeout) for number in sorted(child.left)]

    def close(self) -> None:
        for child in self._children:
            child.pipe.close()
            child.process.send_signal(signal.SIGKILL)
        for child in self._children:
            child.process.wait()


def _said(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """What is started meanwhile hears no signals until it asks for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
