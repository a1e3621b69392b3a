"""Studies in journals and databases: what is written is what Optuna reads."""

import contextlib
import gc
import operator
import sqlite3
import warnings
from types import SimpleNamespace

import optuna
import pytest
import sqlalchemy
from optuna.storages import RDBStorage

from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.store import database
from chop.actions.search.store.errors import MissingStudy, StorageError, StudyInUse
from chop.actions.search.store.study_store import StudyStore

from .conftest import CHOICES, TWO, InOrder, Killed, Shuffled, optuna_storage, recorded, run_loop


@pytest.fixture(autouse=True)
def closed(monkeypatch):
    """Dispose of every database connection that a test has opened."""
    made, create = [], sqlalchemy.engine.create_engine

    def noted(*given, **options):
        made.append(create(*given, **options))
        return made[-1]

    monkeypatch.setattr(sqlalchemy.engine, "create_engine", noted)
    yield
    gc.collect()  # sessions, which hold connections
    for engine in made:
        engine.dispose()


@pytest.fixture
def study(request):
    """A name of its own, as the tests share one server."""
    return request.node.name


def outcome(number):
    """An outcome that failed, or has values up to an infinite one."""
    failed = number % 3 == 0
    return Outcome(
        number,
        "FAIL" if failed else "COMPLETE",
        values=None if failed else (number / 7, float("inf")),
        software={"accuracy": number / 7},
        hardware={"bits": 4.0},
        violations=(0.5,),
        started=1e9 + number,
        error="Traceback\nValueError: é" if failed else None,
    )


@contextlib.contextmanager
def opened(url, study, **options):
    with contextlib.closing(StudyStore(url, study, TWO, CHOICES, **options)) as store:
        yield store


def as_optuna_reads_it(url, study):
    """The study by Optuna's own classes, as a dashboard reads it."""
    return optuna.load_study(study_name=study, storage=optuna_storage(url))


def test_what_was_written_is_what_is_read_again(storage, study):
    with opened(storage, study) as ours:
        for number in range(9):
            ours.add(CHOICES.nth(17 * number), {"note": [number]}, outcome(number))
    with opened(storage, study, write=False) as again:
        assert again.outcomes == ours.outcomes == {n: outcome(n) for n in range(9)}
        assert dict(again.designs) == dict(ours.designs)
        stored = again.read_trials()
    assert [trial.chosen for trial in stored] == [CHOICES.nth(17 * n) for n in range(9)]
    assert [trial.notes for trial in stored] == [{"note": [n]} for n in range(9)]


def test_optuna_reads_a_study_and_continues_it(storage, study):
    with opened(storage, study) as ours:
        for number in range(4):
            ours.add(CHOICES.nth(17 * number), {"note": number}, outcome(number))
        mine = list(ours.frozen_trials())
    theirs = as_optuna_reads_it(storage, study)
    assert [t.number for t in theirs.trials] == [0, 1, 2, 3]
    assert [t.state.name for t in theirs.trials] == ["FAIL", "COMPLETE", "COMPLETE", "FAIL"]
    names = "params distributions user_attrs system_attrs values datetime_start datetime_complete"
    facts = operator.attrgetter(*names.split())
    assert list(map(facts, theirs.trials)) == list(map(facts, mine))
    assert [t.number for t in theirs.best_trials] == [2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trial = theirs.ask()
    assert trial.number == 4


@pytest.mark.sampled(1)
def test_a_slow_trial_is_reserved_and_finished_later(storage, study):
    with opened(storage, study) as ours:
        ours.reserve(0, CHOICES.nth(3), {"note": 1})
        ours.add(CHOICES.nth(4), {}, outcome(1))
        states = [t.state.name for t in as_optuna_reads_it(storage, study).trials]
        assert states == ["RUNNING", "COMPLETE"]
    with opened(storage, study) as again:  # the first process was killed
        assert [trial.outcome is None for trial in again.read_trials()] == [True, False]
        again.add(CHOICES.nth(3), {"note": 1}, outcome(0), reserved=True)
        again.add(CHOICES.nth(5), {}, outcome(2))
    with opened(storage, study, write=False) as read:
        assert read.outcomes == {n: outcome(n) for n in range(3)}
        assert read.read_trials()[0].notes == {"note": 1}


@pytest.mark.parametrize("url", ["{}/empty", "sqlite:///{}/empty"])
def test_an_empty_file_has_no_study_and_stays_empty(tmp_path, url):
    (tmp_path / "empty").touch()
    with pytest.raises(MissingStudy, match="there is no study 's'"):
        StudyStore(url.format(tmp_path), "s", TWO, CHOICES, create=False)
    assert (tmp_path / "empty").read_bytes() == b""


@pytest.mark.sampled(1)
def test_attributes_of_a_study_are_kept(storage, study):
    with opened(storage, study) as ours:
        ours.set_attribute("about", {"seed": 3})
        assert ours.about == {"seed": 3}
    with opened(storage, study) as again:
        assert again.about == {"seed": 3}


@pytest.mark.sampled(1)
def test_one_process_writes_a_study_while_others_read_it(storage, study):
    with opened(storage, study) as ours:
        ours.add(CHOICES.nth(0), {}, outcome(0))
        with pytest.raises(StudyInUse, match="--engine ray"):
            StudyStore(storage, study, TWO, CHOICES)
        with opened(storage, study, write=False) as reader:
            assert reader.outcomes.keys() == {0}
        ours.add(CHOICES.nth(1), {}, outcome(1))
    with opened(storage, study) as next_one:
        assert next_one.outcomes.keys() == {0, 1}


@pytest.mark.sampled(1)
def test_a_study_to_which_another_program_adds_trials_is_left_alone(storage, study):
    with opened(storage, study) as ours:
        ours.add(CHOICES.nth(0), {}, outcome(0))
        other = as_optuna_reads_it(storage, study)
        other.set_user_attr("note", "from a dashboard")
        ours.add(CHOICES.nth(1), {}, outcome(1))  # a note does no harm
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other.ask()
        with pytest.raises(StorageError, match="another program adds trials to this study"):
            ours.add(CHOICES.nth(2), {}, outcome(2))
    assert len(as_optuna_reads_it(storage, study).trials) == 3


@pytest.mark.slow
def test_two_studies_of_a_database_are_written_at_the_same_time(tmp_path, postgres, study):
    for url in (f"sqlite:///{tmp_path}/study.db", postgres):
        with opened(url, f"{study}0") as first, opened(url, f"{study}1") as second:
            for number in range(3):
                for store in (first, second):
                    store.add(CHOICES.nth(number), {}, outcome(number))
        for i in range(2):
            trials = as_optuna_reads_it(url, f"{study}{i}").trials
            assert [trial.number for trial in trials] == [0, 1, 2]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", [InOrder, Shuffled])
def test_a_killed_search_continues_as_if_nothing_had_happened(storage, study, tmp_path, engine):
    slots = 1 if engine is InOrder else 3
    with pytest.raises(Killed):
        run_loop(storage, "tpe", engine(slots, TWO, lives=9), study=study, n_trials=20)
    with opened(storage, study, write=False) as killed:
        assert len(killed.outcomes) == 9
    run_loop(storage, "tpe", engine(slots, TWO), study=study, n_trials=20)
    run_loop(tmp_path / "alone", "tpe", InOrder(1, TWO), n_trials=20)
    assert recorded(storage, study=study) == recorded(tmp_path / "alone")


# --- the disk


def test_a_reader_leaves_the_file_as_it_is(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    theirs = optuna.create_study(study_name="s", storage=RDBStorage(url), directions=TWO)
    with opened(url, "s", write=False) as reader:
        assert reader.study == theirs.study_name
    direct = sqlite3.connect(tmp_path / "study.db")
    assert direct.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    direct.close()


def test_sqlite_writes_ahead_so_that_readers_do_not_block_it(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    with opened(url, "s") as ours:
        reader = sqlite3.connect(tmp_path / "study.db")
        assert reader.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM trials").fetchone() == (0,)
        ours.add(CHOICES.nth(0), {}, outcome(0))  # would be locked out
        reader.close()
    assert not list(tmp_path.glob("*.lock"))


def test_sqlite_waits_for_the_disk_from_time_to_time(tmp_path, monkeypatch):
    now, levels = 1000.0, []
    monkeypatch.setattr(database, "time", SimpleNamespace(monotonic=lambda: now))
    with opened(f"sqlite:///{tmp_path}/study.db", "s") as store:

        @sqlalchemy.event.listens_for(sqlalchemy.engine.Engine, "commit")
        def level(connection):
            cursor = connection.connection.cursor().execute("PRAGMA synchronous")
            levels.append({1: "normal", 2: "full"}[cursor.fetchone()[0]])

        try:
            for number in range(3):
                store.add(CHOICES.nth(number), {}, outcome(number))
            now += 2 * database.SYNC_SECONDS
            store.add(CHOICES.nth(3), {}, outcome(3))
        finally:
            sqlalchemy.event.remove(sqlalchemy.engine.Engine, "commit", level)
    assert levels == ["full", "normal", "normal", "full"]


@pytest.mark.sampled(1)
def test_a_transaction_that_fails_leaves_nothing(storage, study):
    with opened(storage, study) as ours:
        ours.add(CHOICES.nth(0), {}, outcome(0))
        with pytest.raises(TypeError):
            ours.add(CHOICES.nth(1), {"note": object()}, outcome(1))
        ours.add(CHOICES.nth(1), {}, outcome(1))
    assert len(recorded(storage, study=study)) == 2


# --- the order in which trials are written


class Noted(Shuffled):
    """Several workers whose trials end in a given order, and a list of all that happens."""

    def __init__(self, slots, order, monkeypatch):
        super().__init__(slots, TWO)
        self.order, self.happened = iter(order), []
        for name in ("add", "reserve"):
            monkeypatch.setattr(StudyStore, name, self._spy(name, getattr(StudyStore, name)))

    def _spy(self, name, method):
        def noted(store, *values, **options):
            number = next(getattr(v, "number", v) for v in values if isinstance(v, int | Outcome))
            self.happened.append(("finish" if options.get("reserved") else name, number))
            return method(store, *values, **options)

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


def test_trials_that_end_in_their_order_are_written_once(tmp_path, monkeypatch):
    engine = Noted(2, range(8), monkeypatch)
    run_loop(tmp_path / "j", "random", engine, n_trials=8)
    assert engine.of("add", "reserve", "finish") == [("add", number) for number in range(8)]
    # a worker has its next trial before the last is written
    assert engine.happened[:4] == [("begin", 0), ("begin", 1), ("begin", 2), ("add", 0)]


def test_a_trial_that_takes_longer_is_reserved_when_a_later_one_has_ended(tmp_path, monkeypatch):
    engine = Noted(2, [1, 2, 0, 3], monkeypatch)
    run_loop(tmp_path / "j", "random", engine, n_trials=4)
    written = engine.of("add", "reserve", "finish")
    assert written == [("reserve", 0), ("add", 1), ("add", 2), ("finish", 0), ("add", 3)]
    run_loop(tmp_path / "alone", "random", InOrder(1, TWO), n_trials=4)
    assert recorded(tmp_path / "j") == recorded(tmp_path / "alone")
