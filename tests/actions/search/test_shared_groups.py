"""Groups of trials on several machines: each is taken as a whole, by one of them at a time."""

import os
import threading
import time

import pytest

from chop.actions.search import company, coordinator
from chop.actions.search.company import Guest, Lead, Pulse
from chop.actions.search.coordinator import Coordinator
from chop.actions.search.engines.base import Died, Group, Task
from chop.actions.search.outcome import Outcome
from chop.actions.search.record import Record
from chop.actions.search.rungs import Before
from chop.actions.search.settings import settings_of
from chop.actions.search.strategies.base import Quest, strategy_named

from .conftest import CHOICES, PATIENCE, Killed, measure, recorded, tables
from .test_groups import SIZE, WAYS, Groups
from .test_groups import search as search_alone

BEAT = 5.0  # nobody is away for five of these
TRIALS = 22


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Looks often, and nobody pulls the plug."""
    monkeypatch.setattr(company, "LOOK", 0.02)
    monkeypatch.setattr(coordinator, "TICK", 0.02)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Patient(Groups):
    """An engine that may have nothing to do, and that does nothing until it is let."""

    def __init__(self, *, let=lambda: True, **facts):
        super().__init__(**facts)
        self.let = let

    def wait(self, seconds):
        if not self._left or not self.let():
            time.sleep(min(seconds, 0.01))
            return []
        return super().wait(seconds)


def study(path):
    return Record(str(path), "s", WAYS, CHOICES)


def settings(**setup):
    given = {"sampler": "tpe", "n_trials": TRIALS, "in_flight": 2 * SIZE, "heartbeat": BEAT}
    return settings_of(tables(WAYS, **(given | setup)))


class Member(threading.Thread):
    """A guest in a thread; `killed` by its engine it leaves no word."""

    def __init__(self, path, engine, *, retries=2, group=SIZE):
        super().__init__(daemon=True)
        self.engine, self.forgotten, self.error = engine, [], None
        self.guest = Guest(
            study(path), engine, BEAT, retries, group=group, recorded=self.forgotten.append
        )
        self.start()

    def run(self):
        try:
            self.guest.run()
        except Killed:
            pass
        except Exception as error:
            self.error = error


def lead(path, engine, *, group=SIZE, after=lambda: None, **setup):
    """Search as the leader; `after` is called when others can join."""
    chosen, record = settings(**setup), study(path)
    strategy = strategy_named(chosen.sampler)(Quest(CHOICES, WAYS, chosen.n_trials, 7))
    with Lead.taken(record, BEAT) as led:
        facts = {"worker_name": led.me.id, "others": led.guests, "group": group}
        conductor = Coordinator(strategy, engine, record, chosen, **facts)
        conductor.resume(record.trials())
        after()
        end = time.monotonic() + PATIENCE
        conductor.run(lambda: time.monotonic() > end)
    return recorded(path, CHOICES, WAYS)


def groups_of(engine):
    return [tuple(t.number for t in work.tasks) for work in engine.seen if isinstance(work, Group)]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
@pytest.mark.parametrize("guests", [1, 2])
def test_guests_train_whole_groups_and_the_table_is_that_of_one(tmp_path, sampler, guests):
    setup = {"sampler": sampler, "in_flight": (guests + 1) * SIZE}
    alone = search_alone(tmp_path / "alone", Groups(), trials=TRIALS, **setup)
    members = []

    def everybody_has_one():
        return len(members) == guests and all(member.engine.seen for member in members)

    def joined():
        for seed in range(guests):
            engine = Patient(seed=seed, let=everybody_has_one)
            members.append(Member(tmp_path / "j", engine))

    engine = Patient(let=lambda: all(member.guest.done for member in members))
    assert lead(tmp_path / "j", engine, after=joined, **setup) == alone
    for member in members:
        member.join(PATIENCE)
        assert member.error is None
        assert all(isinstance(work, Group) for work in member.engine.seen)
    everybody = [engine, *(member.engine for member in members)]
    taken = [group for each in everybody for group in groups_of(each)]
    assert sorted(taken) == [(*range(i, min(i + SIZE, TRIALS)),) for i in range(0, TRIALS, SIZE)]
    forgotten = sorted(first for member in members for first in member.forgotten)
    assert forgotten == sorted(g[0] for member in members for g in groups_of(member.engine))


@pytest.mark.parametrize("lives", [0, 1, 3])
def test_a_guest_that_is_killed_within_a_group_loses_nothing(tmp_path, monkeypatch, lives):
    monkeypatch.setattr(Pulse, "stop", Pulse.silence)  # no last word
    alone = search_alone(tmp_path / "alone", Groups(), trials=TRIALS, in_flight=2 * SIZE)
    members = []

    def gone(said=None):
        return any(not member.is_alive() and member.engine.seen for member in members)

    monkeypatch.setattr(company, "_is_dead_here", gone)  # as for a process of its own
    engine = Patient(let=gone)
    found = lead(
        tmp_path / "j",
        engine,
        after=lambda: members.append(Member(tmp_path / "j", Patient(lives=lives))),
    )
    assert found == alone
    [work] = members[0].engine.seen
    again = next(w for w in engine.seen if w.tasks[0].number == work.tasks[0].number)
    assert again.tasks == work.tasks
    assert again.numbers == work.numbers[lives:]


def test_a_group_that_a_guest_gives_back_is_taken_by_whoever_is_there(tmp_path):
    alone = search_alone(tmp_path / "alone", Groups(), trials=TRIALS, in_flight=2 * SIZE)
    members = []

    def gave_back():
        return members[0].guest._deaths

    class Left(Patient):
        """Loses its process once, and takes nothing afterwards."""

        def free(self):
            return 0 if self.seen else 1

    engine = Patient(let=gave_back)
    found = lead(
        tmp_path / "j",
        engine,
        after=lambda: members.append(Member(tmp_path / "j", Left(deaths=[True]))),
    )
    assert found == alone
    [lost] = groups_of(members[0].engine)
    assert lost in groups_of(engine)


def test_a_single_trial_that_a_guest_gives_back_is_taken_by_the_leader(tmp_path):
    members = []

    class Left(Patient):
        def free(self):
            return 0 if self.seen else 1

    def after():
        members.append(Member(tmp_path / "j", Left(deaths=[True]), group=1))

    found = lead(
        tmp_path / "j",
        Patient(let=lambda: members[0].guest._deaths),
        group=1,
        after=after,
        n_trials=6,
        in_flight=3,
    )
    assert len(found) == 6


def offered(path, count, last=SIZE - 1):
    """Trials that wait, of a group that goes up to `last`."""
    record = study(path)
    for number in range(count):
        record.publish(number, CHOICES.nth(number), {}, None, Before(((0.5, 1.0),)), last)
    return record


def test_a_group_is_not_taken_before_all_of_it_are_offered(tmp_path):
    record = offered(tmp_path / "j", SIZE - 1)
    engine = Patient()
    guest = Guest(study(tmp_path / "j"), engine, BEAT, group=SIZE)
    guest._take()
    assert engine.seen == []
    record.publish(SIZE - 1, CHOICES.nth(SIZE - 1), {}, None, Before(((0.5, 1.0),)), SIZE - 1)
    guest._take()
    assert groups_of(engine) == [(0, 1, 2, 3)]
    assert {task.before.front for task in engine.seen[0].tasks} == {((0.5, 1.0),)}


def test_a_group_of_which_somebody_has_a_part_is_left_alone(tmp_path):
    record = offered(tmp_path / "j", SIZE)
    assert record.claim(2, "another")
    engine = Patient()
    guest = Guest(study(tmp_path / "j"), engine, BEAT, group=SIZE)
    guest._take()
    assert engine.seen == []


def test_of_two_who_want_a_group_one_gets_it(tmp_path):
    offered(tmp_path / "j", SIZE)
    guests = [Guest(study(tmp_path / "j"), Patient(), BEAT, group=SIZE) for _ in range(2)]
    seen = [guest.record.unfinished_groups(SIZE)[0] for guest in guests]
    assert [guest._is_mine(trials) for guest, trials in zip(guests, seen, strict=True)] == [
        True,
        False,
    ]


def test_what_is_known_of_a_group_is_not_asked_for_again(tmp_path):
    record = offered(tmp_path / "j", SIZE)
    for number in (0, 1):
        assert record.claim(number, "another")
        record.finish(measure(number, CHOICES.nth(number), WAYS))
    engine = Patient()
    guest = Guest(study(tmp_path / "j"), engine, BEAT, group=SIZE)
    guest._take()
    [work] = engine.seen
    assert (groups_of(engine), work.numbers) == ([(0, 1, 2, 3)], (2, 3))


def test_a_group_that_kills_a_guests_processes_is_taken_apart(tmp_path):
    offered(tmp_path / "j", SIZE)
    engine = Patient(deaths=[True, True])
    guest = Guest(study(tmp_path / "j"), engine, BEAT, 2, group=SIZE)
    for _ in range(20):
        guest._take()
        guest._hear(0)
    kinds = [type(work).__name__ for work in engine.seen]
    assert kinds == ["Group", "Group", "Task", "Task", "Task", "Task"]
    assert not study(tmp_path / "j").unfinished()


def test_a_trial_that_kills_its_process_alone_as_well_has_failed(tmp_path):
    offered(tmp_path / "j", SIZE)
    engine = Patient()
    guest = Guest(study(tmp_path / "j"), engine, BEAT, 1, group=SIZE)
    guest._take()
    for number in range(SIZE):
        guest._handle(Died(number, "killed"))
    assert [task.number for task in guest._alone] == [0, 1, 2, 3]
    guest._handle(Died(0, "killed again"))
    for number in range(1, SIZE):
        guest._handle(Outcome(number, "COMPLETE", values=(1.0, 2.0)))
    states = [trial.outcome.state for trial in study(tmp_path / "j").trials()]
    assert states == ["FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]


def test_trials_alone_are_still_tasks(tmp_path):
    offered(tmp_path / "j", 2, last=-1)
    engine = Patient(slots=2)
    Guest(study(tmp_path / "j"), engine, BEAT)._take()
    assert [type(work) for work in engine.seen] == [Task, Task]


class Deadly(Patient):
    """Its first group dies once; then others may join."""

    def __init__(self, joined, **facts):
        super().__init__(**facts)
        self.joined, self.died = joined, False

    def wait(self, seconds):
        if self._left and not self.died:
            self.died = True
            numbers = [task.number for task in self.seen[-1].tasks]
            self._left.clear()
            self.joined()
            return [Died(number, "killed") for number in numbers]
        time.sleep(0.1)  # time enough for others
        return super().wait(seconds)


def test_trials_that_are_run_alone_are_nobody_elses(tmp_path):
    members = []

    def joined():
        members.append(Member(tmp_path / "j", Patient(seed=1), retries=1))
        time.sleep(0.2)  # it has seen what there is

    engine = Deadly(joined)
    lead(tmp_path / "j", engine, retries=1, n_trials=2 * SIZE, in_flight=SIZE)
    alone = {work.number for work in engine.seen if isinstance(work, Task)}
    assert alone == set(range(SIZE))
    theirs = {number for group in groups_of(members[0].engine) for number in group}
    assert not theirs & alone
