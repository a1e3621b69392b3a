"""Trials in processes of this machine: one that dies or hangs takes one trial with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from chop.actions.search.engines.base import Died, Event, Task
from chop.actions.search.outcome import Outcome

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # are for the search itself, which then ends us


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    pipe: Connection
    ready: bool = False
    task: Task | None = None
    since: float = 0.0


class Processes:
    """`slots` processes that each have the problem in memory."""

    in_order = False

    def __init__(self, packed: bytes, slots: int, trial_timeout: float | None = None) -> None:
        self.slots, self._packed, self._timeout = slots, packed, trial_timeout
        self._threads = max(1, (os.cpu_count() or 1) // slots)
        self._children = [self._start() for _ in range(slots)]

    def _start(self) -> _Child:
        ours, theirs = Pipe()
        path = os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path]))
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(self._threads)}
        with _blocked():
            process = subprocess.Popen(
                [sys.executable, "-m", "chop.actions.search.engines.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        theirs.close()
        child = _Child(process, ours, since=time.monotonic())
        self._send(child, self._packed)
        return child

    def _send(self, child: _Child, what: Any) -> None:
        # one that has died is noticed by `wait`
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            child.pipe.send(what)

    def free(self) -> int:
        return sum(child.task is None for child in self._children)

    def submit(self, task: Task) -> None:
        idle = [child for child in self._children if child.task is None]
        child = max(idle, key=lambda child: child.ready)
        child.task = task
        if child.ready:
            child.since = time.monotonic()
            self._send(child, task)

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
            child.task = None
            return [said]
        if isinstance(said, Exception):
            raise said
        child.ready, child.since = True, time.monotonic()
        if child.task is not None:
            self._send(child, child.task)
        return []

    def _buried(self, child: _Child) -> list[Event]:
        """Its trial is free again, and another process takes its place."""
        code = child.process.wait()
        child.pipe.close()
        if not child.ready:
            raise ChildProcessError(
                f"a worker ended with exit code {code} before it was ready; its messages are above"
            )
        self._children[self._children.index(child)] = self._start()
        if child.task is None:
            return []
        reason = f"signal {-code}" if code < 0 else f"exit code {code}"
        return [Died(child.task.number, f"its process ended with {reason}")]

    def _deadline(self, child: _Child) -> float:
        if child.task is None or self._timeout is None or not child.ready:
            return float("inf")
        return child.since + self._timeout

    def _next_deadline(self) -> float:
        return min(self._deadline(child) for child in self._children)

    def _late(self) -> list[_Child]:
        now = time.monotonic()
        return [child for child in self._children if self._deadline(child) <= now]

    def _killed(self, child: _Child) -> list[Event]:
        task = child.task
        assert task is not None
        child.process.kill()
        self._buried(child)
        return [
            Outcome(
                task.number,
                "FAIL",
                seconds=self._timeout or 0.0,
                error=f"the trial took longer than trial_timeout = {self._timeout:g} seconds",
            )
        ]

    def close(self) -> None:
        for child in self._children:
            child.pipe.close()
            child.process.send_signal(signal.SIGKILL)
        for child in self._children:
            child.process.wait()


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """What is started meanwhile hears no signals until it asks for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
