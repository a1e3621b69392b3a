"""The engine that hands trials to Ray, with a Ray that only pretends."""

import importlib
import logging
import sys
from types import SimpleNamespace

import pytest

from chop.actions import search
from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.run.engines import pool
from chop.actions.search.run.engines.base import Group, Task, WorkerDied
from chop.actions.search.spec.settings import Setup
from chop.options import Options, options_of

engine_module = importlib.import_module("chop.actions.search.run.engines.ray")


class RayError(Exception):
    """What Ray raises when an actor is lost."""


class Clock:
    """Time goes by when somebody sleeps."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Method:
    """`actor.name.remote(…)` gives a reference: the actor, and what was asked of it."""

    def __init__(self, actor, name):
        self.actor, self.name = actor, name

    def remote(self, *arguments):
        self.actor.asked.append((self.name, arguments))
        return (self.actor, len(self.actor.asked) - 1)


class Actor:
    """Answers what it is told to: `answers` are taken in turn, an error is raised."""

    def __init__(self, answers):
        self.asked, self.answers, self.killed = [], list(answers), False
        self.begin, self.run = Method(self, "begin"), Method(self, "run")


class PretendedRay:
    """As much of Ray as the engine uses; `scripts` say what each actor answers in turn."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, *scripts, cpus=8.0, connected=False):
        self.scripts, self.actors = list(scripts), []
        self.connected, self.cpus, self.ended = connected, cpus, False
        self.clock = Clock()

    def is_initialized(self):
        return self.connected

    def init(self, **options):
        self.connected = True

    def nodes(self):
        return [
            {"Alive": True, "Resources": {"CPU": self.cpus}},
            {"Alive": False, "Resources": {"CPU": 64.0}},
        ]

    def remote(self, cls):
        return self

    def options(self, **resources):
        self.resources = resources
        return SimpleNamespace(remote=self._actor)

    def _actor(self):
        self.actors.append(Actor(self.scripts.pop(0) if self.scripts else []))
        return self.actors[-1]

    def put(self, value):
        return value

    def wait(self, references, num_returns, timeout):
        done = [(a, n) for a, n in references if len(a.answers) > n]
        if not done:
            self.clock.sleep(timeout)
        return done[:num_returns], []

    def get(self, reference):
        answer = reference[0].answers[reference[1]]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, actor):
        actor.killed = True

    def shutdown(self):
        self.ended = True


@pytest.fixture
def engine(monkeypatch):
    """`engine(ray, …)` is one on a Ray that pretends."""

    def make(ray, workers=1, trial_timeout=None, **resources):
        monkeypatch.setattr(engine_module, "import_ray", lambda: ray)
        for module in (engine_module, pool):
            monkeypatch.setattr(module, "time", ray.clock)
        return engine_module.RayEngine(b"", workers, trial_timeout, **resources)

    return make


def done(number):
    return Outcome(number, "COMPLETE", values=(1.0,), started=0.0)


def test_a_worker_that_never_comes_holds_up_no_trial(engine):
    ray = PretendedRay([], [None, [done(0)], [done(1)]])
    two = engine(ray, workers=2)
    two.submit(Task(0, {}))
    two.submit(Task(1, {}))
    assert two.free() == 0
    assert [e for _ in range(4) for e in two.wait(0)] == [done(0), done(1)]
    assert two.free() == 2


def test_a_lost_worker_is_replaced_and_its_trial_given_back(engine):
    text = "The actor died.\n\tpid: 7\nIts machine went away. Some common causes include: (1) …"
    ray = PretendedRay([None, RayError(text)], [None, [done(4)]])
    one = engine(ray)
    one.submit(Task(4, {}))
    events = [e for _ in range(2) for e in one.wait(0)]
    assert events == [WorkerDied(4, "its Ray worker was lost: Its machine went away")]
    one.submit(Task(4, {}))
    assert [e for _ in range(3) for e in one.wait(0)] == [done(4)]


def test_a_trial_that_takes_too_long_fails_with_its_worker(engine):
    ray = PretendedRay([None], [None, [done(1)]])
    one = engine(ray, trial_timeout=0.5)
    one.submit(Task(0, {}))
    (out,) = one.wait(5)
    assert (out.number, out.state, out.seconds) == (0, "FAIL", 0.5)
    assert "longer than trial_timeout = 0.5 seconds" in out.error
    assert ray.clock.now == 0.5
    assert [actor.killed for actor in ray.actors] == [True, False]
    one.submit(Task(1, {}))
    assert [e for _ in range(2) for e in one.wait(0)] == [done(1)]


def group(*numbers, known=()):
    return Group(tuple(Task(number, {}) for number in numbers), frozenset(known))


def test_a_group_is_one_task_with_the_request_of_a_trial(engine):
    ray = PretendedRay([None, [done(1), done(2)]])
    one = engine(ray, cpus=2, gpus=0)
    one.submit(group(0, 1, 2, known=[0]))
    assert one.free() == 0
    assert [e for _ in range(2) for e in one.wait(0)] == [done(1), done(2)]
    assert (ray.resources["num_cpus"], ray.resources["num_gpus"]) == (2, 0)
    [(_, [work])] = [asked for asked in ray.actors[0].asked if asked[0] == "run"]
    assert work.numbers == (1, 2)
    assert one.free() == 1


def test_a_lost_worker_gives_back_all_of_its_group(engine):
    ray = PretendedRay([None, RayError("Its machine went away.")], [None, [done(1), done(2)]])
    one = engine(ray)
    one.submit(group(0, 1, 2, known=[0]))
    events = [e for _ in range(2) for e in one.wait(0)]
    assert [type(event) for event in events] == [WorkerDied, WorkerDied]
    assert [event.number for event in events] == [1, 2]
    one.submit(group(0, 1, 2, known=[0]))
    assert [e for _ in range(3) for e in one.wait(0)] == [done(1), done(2)]


def test_a_group_has_the_time_of_all_its_trials(engine):
    ray = PretendedRay([None], [None])
    one = engine(ray, trial_timeout=0.5)
    one.submit(group(0, 1, 2))
    assert one.wait(1.25) == []
    events = one.wait(5)
    assert [(out.number, out.state) for out in events] == [(n, "FAIL") for n in range(3)]
    assert ray.clock.now == 1.5


def test_what_workers_have_to_say_is_said_once(engine, caplog):
    answers = [None, ["trials 0 are odd", done(0)], ["trials 0 are odd", done(1)]]
    one = engine(PretendedRay(answers))
    for number in range(2):
        one.submit(Task(number, {}))
        assert [e for _ in range(2) for e in one.wait(0)] == [done(number)]
    assert [record.getMessage() for record in caplog.records] == ["trials 0 are odd"]


def test_the_time_before_a_worker_is_ready_is_not_the_trials(engine):
    ray = PretendedRay([])
    one = engine(ray, trial_timeout=0.5)
    one.submit(Task(0, {}))
    assert one.wait(5) == []
    ray.actors[0].answers += [None, [done(0)]]
    assert [e for _ in range(2) for e in one.wait(0)] == [done(0)]


def test_a_worker_that_cannot_start_ends_the_search_with_its_reason(engine):
    ray = PretendedRay(["there is no file 'mine.py' to import"])
    one = engine(ray)
    with pytest.raises(ValueError, match=r"could not start: there is no file 'mine\.py'"):
        one.wait(1)


def test_workers_that_are_lost_again_and_again_before_they_are_ready_end_the_search(engine):
    ray = PretendedRay(*[[RayError("it exits at once")]] * 5)
    one = engine(ray)
    with pytest.raises(ChildProcessError, match=r"in a row could not start: .*it exits"):
        one.wait(1)
    assert len(ray.actors) == engine_module.STARTS


def test_a_cluster_that_starts_nobody_is_complained_of_once(engine, caplog):
    one = engine(PretendedRay([]))
    one.wait(engine_module.PATIENCE - 1)
    assert not caplog.records
    one.wait(1)
    one.wait(engine_module.PATIENCE)
    assert ["`ray status`" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("found", [True, False])
def test_a_ray_that_was_found_goes_on_and_one_of_our_own_ends(engine, found):
    ray = PretendedRay(connected=found)
    engine(ray, workers=2).close()
    assert [actor.killed for actor in ray.actors] == [True, True]
    assert ray.ended is not found


def test_more_workers_than_the_cluster_can_hold_are_said_once(engine, caplog):
    with caplog.at_level(logging.WARNING):
        two = engine(PretendedRay(cpus=3.0), workers=5, cpus=1.5)
    assert two.slots == 2
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "The Ray cluster has room for 2 of 5 workers with 1.5 CPUs and 0 GPUs each; starting 2"
    ]


def test_fractions_of_a_cpu_add_up(engine):
    assert engine(PretendedRay(cpus=0.3), workers=3, cpus=0.1).slots == 3
    assert engine(PretendedRay(cpus=1.0), workers=9, cpus=0).slots == 9


def test_a_trial_that_fits_nowhere_is_refused_and_our_ray_ends(engine):
    ray = PretendedRay()
    with pytest.raises(ValueError, match=r"has 1 CPUs and 1 GPUs, .* lower cpus_per_trial or gpus"):
        engine(ray, gpus=1)
    assert ray.ended


def test_a_ray_that_cannot_be_reached_is_said_in_a_sentence(engine, monkeypatch):
    ray = PretendedRay()
    monkeypatch.setattr(ray, "init", lambda **_: 1 / 0)
    with pytest.raises(
        ConnectionError, match=r"cannot reach or start Ray: division by zero; check"
    ):
        engine(ray)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ValueError, match=r"not installed; .venv/bin/pip install -c constraints.txt -e .*cluster"
    ):
        engine_module.import_ray()


def test_an_unknown_engine_is_refused_before_any_work(tmp_path):
    with pytest.raises(ValueError, match="unknown engine 'rya'; did you mean 'ray'"):
        search(None, None, "cls", None, None, {}, tmp_path, engine="rya")


@pytest.mark.parametrize("key", ["cpus_per_trial", "gpus_per_trial"])
def test_what_a_trial_asks_for_is_a_number_from_0(key):
    setup = Options("setup", options_of(Setup), "key")
    assert setup.check({key: 0.5}) == {key: 0.5}
    with pytest.raises(ValueError, match=f"{key}: should be greater than or equal to 0, not -1"):
        setup.check({key: -1})
    with pytest.raises(ValueError, match=f"{key}: should be a valid number, not 'all'"):
        setup.check({key: "all"})
