"""The engine that runs trials in processes of this machine."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from chop.actions.search.run.engines.base import Event, Work
from chop.actions.search.run.engines.pool import STARTS, Member, PoolEngine
from chop.system.processes import import_path

# -P and a list of folders: a worker imports only from where the search does
START = (
    "import sys; pipe, *sys.path = sys.argv[1:]; "
    "from chop.actions.search.run.engines.child import main; main(int(pipe))"
)
SIGNALS = (signal.SIGINT, signal.SIGTERM)  # the search itself handles them


@dataclass
class _Child(Member):
    process: subprocess.Popen[bytes]
    pipe: Connection


class ProcessEngine(PoolEngine[_Child]):
    """`slots` processes that each have the study in memory."""

    def __init__(self, packed: bytes, slots: int, trial_timeout: float | None = None) -> None:
        super().__init__(slots, trial_timeout)
        self._packed = packed
        self._members = [self._spawned() for _ in range(slots)]
        for child in self._members:  # all of them load their libraries at the same time
            self._send(child, packed)

    def _spawned(self) -> _Child:
        ours, theirs = Pipe()
        with _blocked_signals():
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", START, str(theirs.fileno()), *import_path()],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        theirs.close()
        return _Child(process, ours)

    def _send(self, member: _Child, work: Work | bytes) -> None:
        # one that has died is noticed by `wait`
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            member.pipe.send(work)

    def _answered(self, seconds: float) -> list[_Child]:
        pipes: list[Any] = wait([child.pipe for child in self._members], seconds)
        return [child for child in self._members if child.pipe in pipes]

    def _receive(self, member: _Child) -> list[Event]:
        try:
            message = member.pipe.recv()
        except (EOFError, OSError):
            return self._lost(member, f"its process ended with {_ending(self._replace(member))}")
        if isinstance(message, Exception):
            raise message
        if member.ready:
            return self._take(member, message)
        member.ready, self._lost_starts = True, 0
        return []

    def _replace(self, child: _Child) -> int:
        """Start another process in the place of one that has ended; return its exit code."""
        code = child.process.wait()
        child.pipe.close()
        self._lost_starts += not child.ready
        # what ends by itself would do so again; what was killed may have had bad luck
        if not child.ready and (code >= 0 or self._lost_starts >= STARTS):
            raise ChildProcessError(
                f"a worker ended with {_ending(code)} before it was ready; see its messages above"
            )
        successor = self._members[self._members.index(child)] = self._spawned()
        self._send(successor, self._packed)
        return code

    def _kill(self, member: _Child) -> None:
        member.process.kill()
        self._replace(member)

    def close(self) -> None:
        for child in self._members:
            child.pipe.close()
            child.process.kill()
        for child in self._members:
            child.process.wait()


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Context in which processes are started that do not receive `SIGNALS`."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
