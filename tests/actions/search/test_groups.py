"""Trials that are asked and measured together: the table of trials, and who runs what."""

import functools
import random

import pytest

from chop.actions.search.metrics.groups import logger
from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.results import display
from chop.actions.search.run.engines.base import Group, InProcessEngine, Task, WorkerDied, reported
from chop.actions.search.run.loop import Progress
from chop.actions.search.spec.settings import settings_of

from .conftest import TWO, Killed, killed_again_and_again, measure, recorded, run_loop, tables

pytestmark = pytest.mark.usefixtures("no_disk")

SIZE = 4


class Groups:
    """An engine whose trials end in any order, and which is killed or loses a process at times.

    What a trial comes to depends on all designs of its group, as rungs make it.
    """

    def __init__(self, slots=1, *, seed=0, lives=10**9, deaths=()):
        self.slots, self.in_order, self.lives = slots, slots == 1, lives
        self.deaths, self.seen = list(deaths), []
        self._random, self._left = random.Random(seed), []

    def free(self):
        return self.slots - len(self._left)

    def submit(self, work):
        assert self.free() > 0
        self.seen.append(work)
        tasks = [work] if isinstance(work, Task) else work.tasks
        mark = repr([task.chosen for task in tasks]) if isinstance(work, Group) else None
        outcomes = [self._measured(t, mark) for t in tasks if t.number in work.numbers]
        self._left.append(outcomes)

    def _measured(self, task, mark):
        out = measure(task.number, task.chosen, TWO)
        if mark is None or out.values is None:
            return out
        values = (random.Random(mark).random(), out.values[1])
        return Outcome(task.number, "COMPLETE", values=values)

    def wait(self, seconds):
        self.lives -= 1
        if self.lives < 0:
            raise Killed
        outcomes = self._left[self._random.randrange(len(self._left))]
        if self.deaths and self.deaths.pop(0):
            self._left.remove(outcomes)
            return [WorkerDied(out.number, "killed") for out in outcomes]
        out = outcomes.pop(0)
        if not outcomes:
            self._left.remove(outcomes)
        return [out]

    def close(self):
        self._left.clear()


def search(path, engine, *, sampler="tpe", trials=22, group_stored=lambda first: None, **setup):
    table = tables(TWO, sampler=sampler, n_trials=trials, **({"in_flight": SIZE} | setup))
    run_loop(path, sampler, engine, SIZE, group_stored, table=table)
    return recorded(path)


@pytest.fixture(params=["tpe", "nsgaii", "random", "brute"])
def sampler(request):
    return request.param


def test_designs_are_asked_and_measured_by_the_group(tmp_path):
    engine, noted = Groups(), []
    table = search(tmp_path / "j", engine, group_stored=noted.append)
    groups = [[task.number for task in work.tasks] for work in engine.seen]
    assert groups == [[*range(first, min(first + SIZE, 22))] for first in noted]
    assert len(table) == 22
    assert noted == [0, 4, 8, 12, 16, 20]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("in_flight", [4, 8])
def test_any_number_of_workers_gives_the_same_table(tmp_path, sampler, in_flight):
    setup = {"sampler": sampler, "in_flight": in_flight}
    alone = search(tmp_path / "a", Groups(), **setup)
    assert search(tmp_path / "b", Groups(2, seed=1), **setup) == alone
    assert search(tmp_path / "c", Groups(3, seed=2), **setup) == alone


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_search_that_was_killed_again_and_again_gives_the_same_table(tmp_path, sampler, workers):
    alone = search(tmp_path / "a", Groups(), sampler=sampler)
    run = functools.partial(search, tmp_path / "k", sampler=sampler)
    killed_again_and_again(run, functools.partial(Groups, workers), workers, 8)
    assert recorded(tmp_path / "k") == alone


def test_a_group_of_which_some_are_recorded_is_measured_as_a_whole(tmp_path):
    with pytest.raises(Killed):
        search(tmp_path / "k", Groups(lives=6))
    engine = Groups()
    search(tmp_path / "k", engine)
    first = engine.seen[0]
    assert [task.number for task in first.tasks] == [4, 5, 6, 7]
    assert first.numbers == (6, 7)


def test_a_group_that_kills_its_process_again_and_again_is_taken_apart(tmp_path):
    engine = Groups(deaths=[True, True])
    table = search(tmp_path / "k", engine, retries=2, trials=4)
    kinds = [type(work).__name__ for work in engine.seen]
    assert kinds == ["Group", "Group", "Task", "Task", "Task", "Task"]
    assert len(table) == 4


class Fake:
    """A worker that trains even numbers together."""

    def run_together(self, designs):
        return {n: Outcome(n, "COMPLETE", worker="together") for n, *_ in designs if n % 2 == 0}

    def run(self, number, chosen, before):
        return Outcome(number, "COMPLETE", worker="alone")


def test_what_cannot_be_trained_together_is_run_alone_in_its_turn():
    engine = InProcessEngine(Fake())
    engine.submit(Group(tuple(Task(n, {}) for n in range(5)), known=frozenset({3})))
    workers = {}
    while engine.free() == 0:
        workers |= {out.number: out.worker for out in engine.wait(0)}
    assert list(workers) == [0, 1, 2, 4]
    assert list(workers.values()) == ["together", "alone", "together", "together"]


class Talkative(Fake):
    """A worker that says why it trains some of them alone."""

    def run_together(self, designs):
        logger.warning("trials 1, 3 are trained one by one: %s", "they are odd")
        return super().run_together(designs)


def test_a_process_whose_log_nobody_reads_reports_why_it_trains_one_by_one(caplog):
    group = Group(tuple(Task(n, {}) for n in range(3)))
    said = list(reported(Talkative(), group))
    assert said[0] == "trials 1, 3 are trained one by one: they are odd"
    assert [out.number for out in said[1:]] == [0, 1, 2]
    assert caplog.records == []


def test_a_rate_is_told_once_a_whole_group_has_ended(monkeypatch):
    said, objectives = [], settings_of(tables()).objectives
    monkeypatch.setattr(display, "EVERY", 0.0)
    with display.progress_bar(objectives, wanted=False, log=said.append) as show:
        progress = Progress(10, group_size=4)
        progress.begin()
        progress.count(Outcome(0, "COMPLETE"))
        show(progress)
        assert said[-1] == "1 trial"
        for number in range(1, 5):
            progress.count(Outcome(number, "COMPLETE"))
        show(progress)
    assert "trials/s" in said[-1]
    assert said[-1].endswith("about 1 s left"), "the shortest time that is shown"
