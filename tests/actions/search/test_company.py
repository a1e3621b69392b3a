"""Several processes on one study: who leads, who is there, who is gone."""

import os
import threading
import time
from types import SimpleNamespace

import pytest
from optuna.trial import TrialState

from chop.actions.search import company
from chop.actions.search.company import GUEST, LEADER, Guests, Identity, Lead, Pulse, is_led
from chop.actions.search.record import Record, StorageError

from .conftest import CHOICES, PATIENCE

BEAT = 0.05


def study(path):
    return Record(str(path), "s", ("maximize",), CHOICES)


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


class Clock:
    """Time goes by when somebody sleeps; `then` is called with what it is afterwards."""

    def __init__(self, then=lambda now: None):
        self.now, self.then = 0.0, then

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.then(self.now)


def test_who_comes_before_the_founder_has_said_so_waits_for_that(tmp_path, monkeypatch):
    ours, theirs, founder = study(tmp_path / "j"), study(tmp_path / "j"), Identity()
    assert (ours.existed, theirs.existed) == (False, True)

    def late(now):
        if 4 <= now < 8:  # seconds, for which the founder was away
            ours.note(LEADER, founder.sign(int(now)))

    clock = Clock(late)
    monkeypatch.setattr(company, "time", clock)
    assert is_led(theirs, 1.0)
    clock.now = 8.0
    assert not is_led(theirs, 1.0)


def test_a_founder_that_never_says_so_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(company, "time", clock := Clock())
    assert not is_led(study(tmp_path / "j"), 1.0)
    assert clock.now == company.GRACE


@pytest.mark.parametrize("said", [None, {"ended": True}])
def test_a_study_that_nobody_leads_any_more_is_not_waited_for(tmp_path, monkeypatch, said):
    record = study(tmp_path / "j")
    record.publish(0, CHOICES.nth(0), {}, None)
    if said is not None:
        record.note(LEADER, Identity().sign(-1) | said)
    monkeypatch.setattr(company, "time", clock := Clock())
    assert not is_led(record, 1.0)
    assert clock.now == 0


class Flaky:
    """A storage that cannot be written the first few times."""

    def __init__(self, failures):
        self.failures, self.noted = failures, []

    def note(self, key, value):
        if self.noted and self.failures:
            self.failures -= 1
            raise StorageError("the network is away")
        self.noted.append(value)


def test_a_beat_that_could_not_be_written_is_not_the_last():
    record = Flaky(failures=3)
    pulse = Pulse(record, LEADER, Identity(), 0.01)
    until(lambda: len(record.noted) > 2)
    pulse.stop()
    assert record.noted[-1]["ended"]


def test_a_leader_that_lost_the_storage_does_not_say_that_the_search_is_over(tmp_path):
    record = study(tmp_path / "j")
    with pytest.raises(StorageError), Lead.taken(record, BEAT):
        raise StorageError("the disk is full")
    assert "ended" not in record.attributes()[LEADER]


def test_a_leader_that_failed_otherwise_says_so(tmp_path):
    record = study(tmp_path / "j")
    with pytest.raises(ValueError, match="broken"), Lead.taken(record, BEAT):
        raise ValueError("broken")
    assert record.attributes()[LEADER]["ended"]


def rival(record, beat):
    """Somebody who has taken the lead meanwhile."""
    record.note(LEADER, Identity().sign(beat))


def test_a_leader_that_slept_while_another_took_the_lead_stands_down(tmp_path):
    record = study(tmp_path / "j")
    with Lead.taken(record, BEAT) as lead:
        rival(study(tmp_path / "j"), beat=4)
        until(lambda: lead.deposed)
    said = record.attributes()[LEADER]
    assert said["id"] != lead.me.id
    assert "ended" not in said


def test_a_leader_is_not_moved_by_who_only_wants_to_lead(tmp_path):
    record = study(tmp_path / "j")
    with Lead.taken(record, BEAT) as lead:
        rival(study(tmp_path / "j"), beat=0)
        until(lambda: record.attributes()[LEADER]["id"] == lead.me.id)
        assert not lead.deposed


def test_of_many_who_want_to_lead_at_once_one_does(tmp_path, monkeypatch):
    """A beat that is shorter than the wait must not outvote who came last."""
    study(tmp_path / "j")
    records, leads = [study(tmp_path / "j") for _ in range(4)], []
    everybody = threading.Barrier(len(records), timeout=PATIENCE)

    def sleep(seconds):
        everybody.wait()
        time.sleep(seconds)

    monkeypatch.setattr(company, "time", SimpleNamespace(sleep=sleep))
    threads = [
        threading.Thread(target=lambda record=record: leads.append(Lead.taken(record, 0.2)))
        for record in records
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (lead,) = [lead for lead in leads if lead is not None]
    lead.__exit__(None, None, None)


@pytest.mark.parametrize(("host", "dead"), [("", True), ("a clone of this machine", False)])
def test_a_process_is_dead_only_if_its_number_is_one_of_this_machine(host, dead):
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    said = {"host": company._here() + host, "pid": process}
    assert company._is_dead_here(said) is dead


@pytest.mark.slow
def test_two_processes_that_start_at_once_share_the_study(searches):
    config = searches.config("n_trials = 40\nheartbeat = 2", odd="seconds = 0.02")
    searches.run(config, out="alone")
    url = str(searches.folder / "shared.journal")
    flags = ["--storage", url, "--study", "both", "--workers", 2]
    both = {out: searches.start(config, *flags, out=out, trials=1) for out in ("a", "b")}
    record = searches.study(url, "both", *both.values())
    searches.until(
        lambda: any(key.startswith(GUEST) for key in record.attributes()), *both.values()
    )
    searches.open_gate()
    for process in both.values():
        searches.ended(process)
    (leader,) = [out for out in both if (searches.results(out) / "log.json").exists()]
    assert searches.table(leader) == searches.table("alone")


def test_who_takes_over_a_lost_trial_has_a_moment_to_sign_it(tmp_path, monkeypatch):
    monkeypatch.setattr(company, "LOOK", 0.05)
    record = study(tmp_path / "j")
    record.publish(0, CHOICES.nth(0), {}, "somebody who died")
    guests = Guests(record, BEAT, "leader")
    until(lambda: list(guests.lost()) == [0])
    assert record.requeue(0)
    record._storage.set_trial_state_values(record._ids[0], TrialState.RUNNING)  # not yet signed
    assert list(guests.lost()) == []
