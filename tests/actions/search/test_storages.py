"""Studies in journals and databases: what is written at once is what Optuna reads."""

import gc
import sqlite3
import threading
import warnings
from types import SimpleNamespace

import optuna
import pytest
import sqlalchemy
from optuna.storages import RDBStorage
from optuna.storages.journal import JournalFileBackend

from chop.actions.search import database
from chop.actions.search.journal import SYNC_SECONDS
from chop.actions.search.outcome import Outcome
from chop.actions.search.record import Record, StorageError, open_storage
from chop.actions.search.rungs import Before

from .conftest import CHOICES, InOrder, Killed, Shuffled, coordinate, recorded

TWO = ("maximize", "minimize")


@pytest.fixture(autouse=True)
def closed(monkeypatch):
    """Connections are given back, whoever has opened them."""
    made, create = [], sqlalchemy.engine.create_engine

    def noted(*given, **options):
        made.append(create(*given, **options))
        return made[-1]

    monkeypatch.setattr(sqlalchemy.engine, "create_engine", noted)
    yield
    gc.collect()  # sessions, which have connections out
    for engine in made:
        engine.dispose()


@pytest.fixture
def study(request):
    """A name of its own, for a server that others use as well."""
    return request.node.name


def outcome(number):
    """One that failed, or has values up to an infinite one."""
    failed = number % 3 == 0
    return Outcome(
        number,
        "FAIL" if failed else "COMPLETE",
        values=None if failed else (number / 7, float("inf")),
        software={"accuracy": number / 7},
        hardware={"bits": 4.0},
        violations=(0.5,),
        error="Traceback\nValueError: é" if failed else None,
    )


def opened(url, study, **options):
    return Record(url, study, TWO, CHOICES, **options)


def content(record):
    found = sorted((dict(vars(trial)) for trial in record.frozen()), key=lambda t: t["_number"])
    for trial in found:
        del trial["_trial_id"]
    return found


def as_optuna_reads_it(url, study):
    """By its own classes, as a dashboard would."""
    if "://" not in url:
        storage = optuna.storages.JournalStorage(JournalFileBackend(url))
    else:
        storage = RDBStorage(url.replace("postgresql://", "postgresql+psycopg://"))
    return optuna.load_study(study_name=study, storage=storage)


def test_what_is_known_of_a_trial_is_what_the_storage_says(storage, study):
    ours = opened(storage, study)
    for number in range(9):
        ours.add(CHOICES.nth(17 * number), {"note": [number]}, outcome(number))
        ours.note("beat", number)
    assert len(content(ours)) == 9
    assert content(opened(storage, study)) == content(ours)


def test_optuna_reads_a_study_and_goes_on_with_it(storage, study):
    ours = opened(storage, study)
    for number in range(4):
        ours.add(CHOICES.nth(17 * number), {}, outcome(number))
    theirs = as_optuna_reads_it(storage, study)
    assert [t.number for t in theirs.trials] == [0, 1, 2, 3]
    assert [t.state.name for t in theirs.trials] == ["FAIL", "COMPLETE", "COMPLETE", "FAIL"]
    for mine, trial in zip(ours.frozen(), theirs.trials, strict=True):
        assert trial.params == mine.params
        assert trial.distributions == mine.distributions
        assert trial.user_attrs == mine.user_attrs
        assert trial.values == mine.values
        assert trial.datetime_start == mine.datetime_start
    assert [t.number for t in theirs.best_trials] == [2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trial = theirs.ask()
    assert trial.number == 4


@pytest.mark.parametrize("front", [(), ((0.5, 1.0),)])
def test_a_trial_is_published_and_finished_once(storage, study, front):
    ours, theirs = opened(storage, study), opened(storage, study)
    ours.publish(0, CHOICES.nth(3), {"note": 1}, "me", Before(front))
    ours.publish(1, CHOICES.nth(4), {}, None, Before(front))
    found = {trial.number: trial for trial in theirs.trials()}
    assert found[0].worker == "me"
    assert found[0].chosen == CHOICES.nth(3)
    assert found[0].front == front
    assert [found[i].waiting for i in (0, 1)] == [False, True]
    assert theirs.claim(1, "them")
    assert not ours.claim(1, "me")
    assert theirs.finish(outcome(1))
    assert not ours.finish(outcome(1))
    assert ours.finish(outcome(0), urgent=False)
    assert ours.outcomes()[1].values == outcome(1).values
    assert ours.outcomes()[0].error == outcome(0).error
    assert not ours.unfinished()
    assert content(ours) == content(theirs) == content(opened(storage, study))
    ours.note("beat", 1)  # what was refused leaves nothing behind
    assert theirs.attributes()["beat"] == 1


def test_a_search_that_finds_others_trials_adds_none(storage, study):
    ours = opened(storage, study)
    ours.add(CHOICES.nth(0), {}, outcome(0))
    theirs = opened(storage, study)
    theirs.add(CHOICES.nth(1), {}, outcome(1))
    for add in (ours.add, lambda *given: ours.publish(1, *given[:2], "me")):
        with pytest.raises(StorageError, match="another search adds trials to it as well"):
            add(CHOICES.nth(1), {}, outcome(1))
    assert len(content(ours)) == len(content(theirs)) == 2


def test_two_studies_of_a_storage_number_their_trials_by_themselves(storage, study):
    records = [opened(storage, f"{study}{i}") for i in range(2)]
    for number in range(3):
        for record in records:
            record.add(CHOICES.nth(number), {}, outcome(number))
    for record in records:
        assert [trial.number for trial in record.frozen()] == [0, 1, 2]


def test_beats_and_trials_are_written_at_once(storage, study):
    record = opened(storage, study)
    over, filters, failed = threading.Event(), list(warnings.filters), []

    def beat():
        while not over.is_set():
            try:
                record.note("beat", 1)
            except Exception as error:
                failed.append(error)

    thread = threading.Thread(target=beat)
    thread.start()
    for number in range(60):
        record.add(CHOICES.nth(number), {}, outcome(number))
    over.set()
    thread.join()
    assert not failed
    assert len(content(opened(storage, study))) == 60
    assert warnings.filters == filters


@pytest.mark.parametrize("engine", [InOrder, Shuffled])
def test_a_killed_search_goes_on_as_if_nothing_had_happened(storage, study, tmp_path, engine):
    slots = 1 if engine is InOrder else 3
    with pytest.raises(Killed):
        coordinate(storage, "tpe", engine(slots, TWO, lives=9), study=study, n_trials=20)
    before = content(opened(storage, study))
    assert sum(trial["state"].is_finished() for trial in before) == 9
    coordinate(storage, "tpe", engine(slots, TWO), study=study, n_trials=20)
    coordinate(tmp_path / "alone", "tpe", InOrder(1, TWO), n_trials=20)
    assert recorded(storage, study=study) == recorded(tmp_path / "alone")


# --- several at once


def test_a_trial_has_one_owner(storage, study):
    lead, count = opened(storage, study), 40
    for number in range(count):
        lead.publish(number, CHOICES.nth(number), {}, None)
    got, start = [[], []], threading.Barrier(2)

    def claim(who):
        record = opened(storage, study)
        record.frozen()
        for number in range(count):
            start.wait(60)
            if record.claim(number, str(who)):
                got[who].append(number)

    threads = [threading.Thread(target=claim, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(got[0] + got[1]) == list(range(count))


def test_what_is_finished_at_the_last_moment_stays_finished(storage, study, monkeypatch):
    lead, guest = opened(storage, study), opened(storage, study)
    lead.publish(0, CHOICES.nth(0), {}, None)
    guest.frozen()
    assert guest.claim(0, "guest")
    check = RDBStorage.check_trial_is_updatable

    def meanwhile(self, *given):
        check(self, *given)
        monkeypatch.setattr(RDBStorage, "check_trial_is_updatable", check)
        guest.finish(outcome(0))

    monkeypatch.setattr(RDBStorage, "check_trial_is_updatable", meanwhile)
    lead.requeue(0)
    guest.finish(outcome(0))  # unless it was in between
    assert lead.requeue(0) is False
    assert lead.claim(0, "lead") is False
    (found,) = as_optuna_reads_it(storage, study).trials
    assert found.state.is_finished()


def test_what_a_killed_process_left_of_an_outcome_is_replaced(tmp_path):
    record = opened(f"sqlite:///{tmp_path}/study.db", "s")
    record.publish(0, CHOICES.nth(0), {}, "me")
    half = sqlite3.connect(tmp_path / "study.db")
    half.execute(
        "INSERT INTO trial_user_attributes (trial_id, key, value_json) VALUES (1, ?, ?)",
        ("violations", "[9.0]"),
    )
    half.commit()
    half.close()
    assert record.finish(outcome(0))
    (found,) = opened(f"sqlite:///{tmp_path}/study.db", "s").trials()
    assert found.outcome.violations == (0.5,)


def test_a_storage_that_has_lost_a_trial_is_not_added_to(tmp_path):
    record = opened(f"sqlite:///{tmp_path}/study.db", "s")
    for number in range(2):
        record.add(CHOICES.nth(number), {}, outcome(number))
    broken = sqlite3.connect(tmp_path / "study.db")
    broken.execute("DELETE FROM trials WHERE number = 1")
    broken.commit()
    broken.close()
    with pytest.raises(StorageError):
        record.add(CHOICES.nth(2), {}, outcome(2))


def test_a_choice_of_true_is_not_one_of_1(storage, study):
    for name, choices in ((f"{study}-a", (True, False)), (f"{study}-b", (1, 0))):
        found = optuna.create_study(study_name=name, storage=open_storage(storage))
        found.optimize(
            lambda trial, c=choices: float(trial.suggest_categorical("c", c)), n_trials=1
        )
    again = optuna.load_study(study_name=f"{study}-b", storage=open_storage(storage))
    assert repr(again.trials[0].distributions["c"].choices) == "(1, 0)"


# --- the disk


def test_who_only_reads_leaves_the_file_as_it_is(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    RDBStorage(url)
    open_storage(url, create=False)
    reader = sqlite3.connect(tmp_path / "study.db")
    assert reader.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    reader.close()


def test_sqlite_writes_ahead_so_that_readers_are_no_bar(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    ours = opened(url, "s")
    reader = sqlite3.connect(tmp_path / "study.db")
    assert reader.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM trials").fetchone() == (0,)
    ours.add(CHOICES.nth(0), {}, outcome(0))  # would be locked out
    reader.close()


def synchronous(monkeypatch, record):
    """How SQLite was told to treat the disk at each commit."""
    from sqlalchemy import event

    seen = []

    @event.listens_for(record._storage._backend.engine, "commit")
    def _(connection):
        level = connection.connection.cursor().execute("PRAGMA synchronous").fetchone()[0]
        seen.append({1: "normal", 2: "full"}[level])

    return seen


def test_the_disk_is_waited_for_from_time_to_time_and_where_others_wait(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(database, "time", SimpleNamespace(monotonic=lambda: now))
    record = opened(f"sqlite:///{tmp_path}/study.db", "s")
    seen = synchronous(monkeypatch, record)
    for number in range(3):
        record.add(CHOICES.nth(number), {}, outcome(number))
    assert seen == ["full", "normal", "normal"]
    record.publish(3, CHOICES.nth(3), {}, None)  # for guests
    record.note("beat", 1)
    assert seen[3:] == ["full", "full"]
    now += 2 * SYNC_SECONDS
    record.add(CHOICES.nth(4), {}, outcome(4))
    assert seen[5:] == ["full"]


def test_a_transaction_that_fails_leaves_nothing(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/study.db"
    record = opened(url, "s")
    record.add(CHOICES.nth(0), {}, outcome(0))
    with pytest.raises(TypeError):
        record.add(CHOICES.nth(1), {"note": object()}, outcome(1))
    record.add(CHOICES.nth(1), {}, outcome(1))
    assert len(content(opened(url, "s"))) == 2


# --- several workers


class Noted(Shuffled):
    """Several workers; which trials end first is told, and everything that happens is noted."""

    def __init__(self, slots, order, monkeypatch):
        super().__init__(slots, TWO)
        self.order, self.happened = iter(order), []
        for name in ("add", "publish", "finish"):
            monkeypatch.setattr(Record, name, self._spy(name, getattr(Record, name)))

    def _spy(self, name, method):
        def noted(record, first, *given, **options):
            numbers = [getattr(x, "number", x) for x in (first, *given)]
            self.happened.append((name, next(n for n in numbers if isinstance(n, int))))
            return method(record, first, *given, **options)

        return noted

    def submit(self, task):
        super().submit(task)
        self.happened.append(("begin", task.number))

    def wait(self, seconds):
        number = next(self.order)
        self._tasks.sort(key=lambda task: task.number != number)
        self._random.randrange = lambda count: 0
        return super().wait(seconds)

    def of(self, *names):
        return [event for event in self.happened if event[0] in names]


def test_trials_of_several_workers_are_written_once_if_they_end_in_their_order(
    tmp_path, monkeypatch
):
    engine = Noted(2, range(8), monkeypatch)
    coordinate(tmp_path / "j", "random", engine, n_trials=8)
    assert engine.of("add", "publish", "finish") == [("add", number) for number in range(8)]


def test_a_trial_that_takes_longer_is_announced_when_a_later_one_has_ended(tmp_path, monkeypatch):
    engine = Noted(2, [1, 2, 0, 3], monkeypatch)
    coordinate(tmp_path / "j", "random", engine, n_trials=4)
    written = engine.of("add", "publish", "finish")
    assert written == [("publish", 0), ("add", 1), ("add", 2), ("finish", 0), ("add", 3)]
    coordinate(tmp_path / "alone", "random", InOrder(1, TWO), n_trials=4)
    assert recorded(tmp_path / "j") == recorded(tmp_path / "alone")


def test_a_worker_has_its_next_trial_before_the_last_is_written(tmp_path, monkeypatch):
    engine = Noted(2, range(4), monkeypatch)
    coordinate(tmp_path / "j", "random", engine, n_trials=4)
    assert engine.happened[:4] == [("begin", 0), ("begin", 1), ("begin", 2), ("add", 0)]
