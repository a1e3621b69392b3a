"""Processes that measure trials, and what becomes of them."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe

import pytest

from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.run.engines import processes
from chop.actions.search.run.engines.base import Group, Task, WorkerDied
from chop.actions.search.run.engines.processes import STARTS, ProcessEngine

KILLED = -signal.SIGKILL
PATIENCE = 600  # seconds, against tests that hang


class Pretended:
    """A process that is a thread: it says what it is told to, and then ends with that code."""

    def __init__(self, pipe, answers, code):
        self.pipe, self.answers, self.code = pipe, answers, code
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        with contextlib.suppress(EOFError, OSError), self.pipe:
            for answer in self.answers:
                self.pipe.recv()
                self.pipe.send(answer)
            if self.code is None:
                self.pipe.recv()

    def wait(self):
        self.thread.join()
        return self.code

    def kill(self):
        pass


@pytest.fixture
def engine(monkeypatch):
    """`engine([answers, code], …)` has these processes one after the other."""
    made = []

    def make(*scripts, slots=1, trial_timeout=None):
        left = list(scripts)

        def spawned(self):
            ours, theirs = Pipe()
            return processes._Child(Pretended(theirs, *left.pop(0)), ours)

        monkeypatch.setattr(ProcessEngine, "_spawned", spawned)
        made.append(ProcessEngine(b"", slots, trial_timeout))
        return made[-1]

    yield make
    for each in made:
        each.close()


def done(number):
    return Outcome(number, "COMPLETE", started=0.0)


def events(engine, count=1, until=lambda: False):
    received, end = [], time.monotonic() + PATIENCE
    while len(received) < count and not until() and time.monotonic() < end:
        received += engine.wait(0.05)
    return received


def test_a_process_that_dies_in_a_trial_gives_it_back(engine):
    one = engine((["ready"], KILLED), (["ready", done(7)], None))
    one.submit(Task(7, {}))
    assert events(one) == [WorkerDied(7, "its process ended with signal 9")]
    one.submit(Task(7, {}))
    assert events(one) == [done(7)]


GROUP = Group((Task(4, {}), Task(5, {}), Task(6, {})), known=frozenset({5}))


def test_a_process_that_dies_in_a_group_gives_back_what_is_not_known(engine):
    one = engine((["ready", done(4)], KILLED), (["ready", done(6)], None))
    one.submit(GROUP)
    assert events(one, 2) == [done(4), WorkerDied(6, "its process ended with signal 9")]
    assert one.free() == 1


def test_a_group_is_done_when_all_its_trials_are(engine):
    one = engine((["ready", done(4)], None))
    one.submit(GROUP)
    assert events(one) == [done(4)]
    assert one.free() == 0


def test_what_a_process_has_to_say_is_no_outcome(engine, caplog):
    one = engine((["ready", "trials 4, 6 are odd"], None))
    one.submit(GROUP)
    assert events(one, until=lambda: caplog.records) == []
    assert [record.getMessage() for record in caplog.records] == ["trials 4, 6 are odd"]
    assert one.free() == 0


def test_a_process_that_is_killed_before_it_is_ready_costs_its_trial_nothing(engine):
    one = engine(([], KILLED), ([], KILLED), (["ready", done(3)], None))
    one.submit(Task(3, {}))
    assert events(one) == [done(3)]


@pytest.mark.parametrize(
    ("times", "code", "said"), [(STARTS, KILLED, "signal 9"), (1, 1, "exit code 1")]
)
def test_processes_that_end_before_they_are_ready_end_the_search(engine, times, code, said):
    one = engine(*[([], code)] * times)
    with pytest.raises(ChildProcessError, match=f"ended with {said} before it was ready"):
        events(one)


@pytest.mark.slow
def test_a_worker_ends_with_a_search_that_was_killed():
    worker = (
        "import os, threading, time\n"
        "from chop.actions.search.run.engines.child import _end_with\n"
        "threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()\n"
        "print('busy', flush=True); time.sleep(600)"
    )
    search = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {worker!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", search], stdout=subprocess.PIPE, text=True)
    with process:
        child = int(process.stdout.readline())
        process.kill()
    end = time.monotonic() + PATIENCE
    while runs(child) and time.monotonic() < end:
        time.sleep(0.1)
    assert not runs(child)


def runs(number):
    """Whether there is that process; one that nobody has buried does not run."""
    listed = subprocess.run(["ps", "-o", "stat=", str(number)], capture_output=True, text=True)
    return bool(listed.stdout.strip("Z+<Nsl \n"))
