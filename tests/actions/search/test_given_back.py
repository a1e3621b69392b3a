"""What others measure counts as what is measured here; what they give back is nobody's."""

import time

import pytest

from chop.actions.search import company
from chop.actions.search.company import GUEST, Guests, Identity
from chop.actions.search.coordinator import Failed
from chop.actions.search.outcome import Outcome
from chop.actions.search.record import Record

from .conftest import CHOICES, InOrder, coordinate, recorded, tables

WAYS = ("maximize", "minimize")


class FailingGuest:
    """Somebody else, who takes trial 3 and fails with it."""

    def __init__(self, path):
        self._record = Record(str(path), "s", WAYS, CHOICES)

    def present(self):
        for trial in self._record.unfinished():
            if trial.number == 3 and trial.waiting and self._record.claim(3, "guest"):
                error = "Traceback\nValueError: planted"
                self._record.finish(Outcome(3, "FAIL", error=error, worker="guest"))
        return True

    def has(self, worker):
        return True

    def lost(self):
        return ()


class Waits(InOrder):
    """Has nothing to do for a while, and waits."""

    def wait(self, seconds):
        return super().wait(seconds) if self._tasks else []


@pytest.mark.parametrize("fail_fast", [True, False])
def test_what_fails_elsewhere_fails(tmp_path, caplog, fail_fast):
    path = tmp_path / "j"
    table = tables(WAYS, sampler="tpe", n_trials=12, in_flight=8, fail_fast=fail_fast)
    guest, engine = FailingGuest(path), Waits(1, WAYS)
    if fail_fast:
        with pytest.raises(Failed, match="trial 3 failed: ValueError: planted"):
            coordinate(path, "tpe", engine, table=table, others=guest)
        return
    coordinate(path, "tpe", engine, table=table, others=guest)
    assert "Trial 3 failed: ValueError: planted" in caplog.text
    assert recorded(path)[3][2] == "FAIL"


def test_who_claims_what_was_given_back_and_dies_unsigned_has_lost_it(tmp_path, monkeypatch):
    from optuna.trial import TrialState

    monkeypatch.setattr(company, "LOOK", 0.05)
    record = Record(str(tmp_path / "j"), "s", WAYS, CHOICES)
    record.note(GUEST + "A", Identity(id="A").sign(1))
    record.publish(0, CHOICES.nth(0), {}, None)
    guests = Guests(record, 1000.0, "leader")
    guests.present()
    assert record.claim(0, "A")
    assert record.requeue(0)  # by A, who lives on
    record._storage.set_trial_state_values(record._ids[0], TrialState.RUNNING)  # B, then killed
    assert list(guests.lost()) == []
    time.sleep(0.1)
    assert list(guests.lost()) == [0]
