"""Whatever dies, fills up, raises or hangs: what was finished is there, and the search goes on."""

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import threading
import time
import warnings

import pytest

from chop.actions.search.company import GUEST
from chop.actions.search.goals import Constraint, Goal, Goals
from chop.actions.search.outcome import Outcome
from chop.actions.search.record import Record, StorageError

from . import test_predecessor as predecessor
from .conftest import CHOICES, PATIENCE, InOrder, Killed, Shuffled, coordinate, measure, recorded
from .runners.conftest import make_scene

TWO = ("maximize", "minimize")
SLOWLY = "seconds = 0.05"
BEAT = "heartbeat = 2"  # who is killed here is missed at once; nobody is away for five beats

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


def finished(record):
    """The numbers of the finished trials, with what is known of them."""
    return {t.number: t.user_attrs for t in record.frozen() if t.state.is_finished()}


def of_guests(record):
    """The trials that guests have taken: those that they have finished, and the others."""
    guests = {key.removeprefix(GUEST) for key in record.attributes() if key.startswith(GUEST)}
    taken = [t for t in record.frozen() if t.user_attrs.get("worker") in guests]
    return [t for t in taken if t.state.is_finished()], [
        t for t in taken if not t.state.is_finished()
    ]


# --- kill -9


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_every_finished_trial_survives_kill_9(searches, storage, workers):
    study = f"kill{workers}"
    config = searches.config(f"n_trials = 24\n{BEAT}", odd=SLOWLY)
    searches.run(config, out="alone")
    process, record = searches.lead(config, storage, study, "--workers", workers, trials=10)
    searches.until(lambda: len(finished(record)) >= 6, process)
    searches.kill(process)
    before = finished(record)
    flags = ["--storage", storage, "--study", study, "--workers", workers]
    said = searches.run(config, *flags, "--resume")
    assert f"{len(before)} trials are done" in said
    after = finished(record)
    assert {n: after[n] for n in before} == before
    assert searches.table() == searches.table("alone")
    assert ":secret@" not in said
    assert ":secret@" not in (searches.results() / "search.json").read_text()


def joined(searches, config, url, *flags, trials=None):
    """A leader, which waits for the gate after two trials, a guest that has done one, the study.

    The trials of the leader are in processes, as it offers none while it measures one itself.
    """
    leader, record = searches.lead(config, url, "both", "--workers", 2, trials=1)
    where = ["--storage", url, "--study", "both"]
    guest = searches.start(config, *where, *flags, out="guest", trials=trials)
    searches.until(lambda: of_guests(record)[0] and len(finished(record)) >= 3, leader, guest)
    return leader, guest, record


@pytest.mark.slow
def test_two_processes_share_a_study_and_one_takes_over_when_the_other_is_killed(searches):
    config = searches.config(f"n_trials = 40\n{BEAT}", odd=SLOWLY)
    searches.run(config, out="alone")
    leader, guest, _ = joined(searches, config, str(searches.folder / "shared.journal"))
    searches.kill(leader)
    said = searches.ended(guest)
    assert "Joined the study 'both'" in said
    assert "going on in its place" in said
    assert searches.table("guest") == searches.table("alone")


RUNGS = """
[search.strategy.sw_runner.basic_train]
max_epochs = 3
rungs = [1, 2]
keep = 0.25
batch_size = 8192
"""


@pytest.mark.slow
def test_a_guest_and_whoever_takes_over_stop_the_same_trials_at_rungs(searches):
    config = searches.config(f"n_trials = 30\n{BEAT}", odd=SLOWLY)
    before, _, after = config.read_text().partition("[search.strategy.sw_runner.basic_evaluation]")
    rest = after.partition("num_samples = 64\n")[2]
    config.write_text(f"{before}{RUNGS}{rest}")
    searches.run(config, out="alone")
    alone = searches.table("alone")
    assert sum(row["state"] == "PRUNED" for row in alone.values()) > 5
    leader, guest, _ = joined(searches, config, str(searches.folder / "shared.journal"))
    searches.kill(leader)
    assert "going on in its place" in searches.ended(guest)
    assert searches.table("guest") == alone


@pytest.mark.slow
def test_a_guest_leaves_when_the_search_is_over(searches, storage):
    config = searches.config(f"n_trials = 30\n{BEAT}", odd=SLOWLY)
    searches.run(config, out="alone")
    leader, guest, _ = joined(searches, config, storage, "--workers", 2)
    searches.open_gate()
    searches.ended(leader)
    assert "is done (1 here)" in searches.ended(guest)
    assert not (searches.results("guest") / "log.json").exists()  # the leader has written it
    assert searches.table() == searches.table("alone")


@pytest.mark.slow
def test_the_trial_of_a_guest_that_was_killed_is_run_again(searches):
    config = searches.config(f"n_trials = 30\n{BEAT}", odd=SLOWLY)
    searches.run(config, out="alone")
    url = str(searches.folder / "shared.journal")
    leader, guest, record = joined(searches, config, url, trials=1)
    searches.until(lambda: of_guests(record)[1], leader, guest)
    searches.kill(guest)
    searches.open_gate()
    assert "its worker is gone; it is run again" in searches.ended(leader)
    assert searches.table() == searches.table("alone")


# --- workers and trials


@pytest.mark.slow
def test_a_worker_that_was_killed_loses_nothing(searches):
    config = searches.config("n_trials = 12", odd="what = 'die once'")
    said = searches.run(config, "--workers", 2)
    assert "Trial 3: its process ended with signal 9; it is run again" in said
    config = searches.config("n_trials = 12", odd="", metrics="")
    config = searches.config("n_trials = 12", odd="what = 'nothing'")
    searches.run(config, out="alone")
    assert searches.table() == searches.table("alone")


@pytest.mark.slow
def test_a_trial_that_kills_every_worker_fails_in_the_end(searches):
    config = searches.config("n_trials = 6\nretries = 1", odd="what = 'die'")
    said = searches.run(config, "--workers", 2)
    row = searches.table()["3"]
    assert row["state"] == "FAIL"
    assert "signal 9, for the 2. time" in row["user_attrs_error"]
    assert "Trial 3 failed" in said


@pytest.mark.slow
def test_a_trial_that_raises_is_recorded_and_the_search_goes_on(searches):
    config = searches.config("n_trials = 6", odd="what = 'raise'")
    said = searches.run(config)
    assert "Trial 3 failed: ArithmeticError: the planted error" in said
    rows = searches.table()
    assert [row["state"] for row in rows.values()].count("COMPLETE") == 5
    assert rows["3"]["values_0"] is None
    error = rows["3"]["user_attrs_error"]
    assert error.startswith("Traceback")
    assert "odd.py" in error
    page = json.loads((searches.results() / "search.json").read_text())
    assert page["trials"][3]["error"] == error


@pytest.mark.slow
def test_fail_fast_stops_at_the_first_failure(searches):
    config = searches.config("n_trials = 6\nfail_fast = true", odd="what = 'raise'")
    said = searches.run(config, check=1)
    assert (
        said.strip().splitlines()[-1].endswith("trial 3 failed: ArithmeticError: the planted error")
    )
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("fail_fast", "bad", "said"),
    [
        (True, (2,), "trial 2 failed: ArithmeticError"),
        (False, range(4), "no trial was completed; the first failed with: ArithmeticError"),
    ],
)
def test_a_search_that_is_cut_short_leaves_its_files(tmp_path, monkeypatch, fail_fast, bad, said):
    judged, numbers = Goals.violations, iter(range(100))

    def planted(goals, metrics):
        if next(numbers) in bad:
            raise ArithmeticError("planted")
        return judged(goals, metrics)

    monkeypatch.setattr(Goals, "violations", planted)
    table = predecessor.tables(setup={"n_trials": 4, "fail_fast": fail_fast})
    with pytest.raises(ValueError, match=said):
        predecessor.run(make_scene(), tmp_path, table)
    states = [row["state"] for row in json.loads((tmp_path / "log.json").read_text()).values()]
    assert states == (["COMPLETE", "COMPLETE", "FAIL"] if fail_fast else ["FAIL"] * 4)
    assert bool(json.loads((tmp_path / "best.json").read_text())) is fail_fast


@pytest.mark.slow
def test_a_metric_that_is_no_number_fails_its_trial_by_name(searches):
    metrics = "[search.strategy.metrics]\nodd.scale = 1.0\n"
    config = searches.config("n_trials = 5", odd="what = 'nan'", metrics=metrics)
    said = searches.run(config)
    assert "Trial 3 failed: ValueError: the metric odd is nan" in said
    assert searches.table()["3"]["state"] == "FAIL"


@pytest.mark.parametrize("name", ["accuracy", "bitops"])
def test_no_objective_and_no_constraint_takes_what_is_no_number(name):
    goals = Goals((Goal("accuracy", "maximize"),), None, (Constraint("bitops", "<=", 6.0),))
    metrics = {"accuracy": 0.5, "bitops": 5.0, "loss": math.nan}
    assert goals.values(metrics) == [0.5]
    with pytest.raises(ValueError, match=f"the metric {name} is nan"):
        goals.values(metrics | {name: math.nan})


@pytest.mark.slow
def test_a_trial_that_hangs_is_stopped_after_trial_timeout(searches):
    config = searches.config("n_trials = 5\ntrial_timeout = 5.0", odd="what = 'hang'")
    said = searches.run(config)
    assert "Trial 3 failed: the trial took longer than trial_timeout = 5 seconds" in said
    states = [row["state"] for row in searches.table().values()]
    assert states == ["COMPLETE", "COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_search_in_which_everything_fails_says_why(searches, workers):
    config = searches.config("n_trials = 4", odd="what = 'raise'\nat = -1")
    said = searches.run(config, "--workers", workers, check=1)
    last = said.strip().splitlines()[-1]
    assert "no trial was completed; the first failed with: ArithmeticError" in last
    assert {row["state"] for row in searches.table().values()} == {"FAIL"}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_search_and_it_can_be_resumed(searches, number, code, workers):
    config = searches.config("n_trials = 16", odd=SLOWLY)
    process = searches.start(config, "--workers", workers, trials=6)
    searches.until(lambda: searches.written() >= 4, process)
    searches.signal(process, number)
    searches.open_gate()
    said = searches.ended(process, code)
    assert "--resume" in said.strip().splitlines()[-1]
    assert "Traceback" not in said
    assert "Look at it: " in said
    assert 1 <= len(searches.table()) < 16  # those that ran in other processes are not finished
    assert (searches.results() / "best.json").exists()
    searches.run(config, "--resume")
    searches.run(config, out="alone")
    assert searches.table() == searches.table("alone")


# --- disks


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_the_search_goes_on_after(searches):
    config = searches.config("n_trials = 30")
    searches.run(config, out="alone")
    full = ["prlimit", "--fsize=12000"]
    if shutil.which(full[0]) is None:
        pytest.skip("prlimit, which makes the disk full, is not installed")
    said = searches.run(config, check=1, wrap=full)
    last = said.strip().splitlines()[-1]
    assert "File too large" in last
    assert "--resume" in last
    assert "Traceback" not in said
    with contextlib.closing(
        Record.found(str(searches.results() / "search.journal"), "search")
    ) as record:
        before = len(finished(record))
    assert 0 < before < 30
    said = searches.run(config, "--resume")
    assert f"{before} trials are done" in said
    assert searches.table() == searches.table("alone")


@pytest.fixture
def journal(tmp_path):
    """A search that was killed after a few trials."""
    path = tmp_path / "j"
    with pytest.raises(Killed):
        coordinate(path, "tpe", InOrder(1, TWO, lives=6), n_trials=12)
    return path


@pytest.mark.parametrize("cut", [1, 20])
def test_a_half_written_last_line_costs_its_trial_alone(tmp_path, journal, cut):
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-cut])
    coordinate(journal, "tpe", InOrder(1, TWO), n_trials=12)
    coordinate(tmp_path / "alone", "tpe", InOrder(1, TWO), n_trials=12)
    assert recorded(journal) == recorded(tmp_path / "alone")


def test_whoever_writes_next_takes_a_half_written_line_off(journal):
    record = Record(str(journal), "s", TWO, CHOICES)
    with journal.open("ab") as file:
        file.write(b'{"op_code":4,"wor')
    record.note("hello", 1)
    assert Record(str(journal), "s", TWO, CHOICES).attributes()["hello"] == 1


def test_a_lock_does_not_outlive_its_process(journal, monkeypatch):
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from chop.actions.search.journal import File\n"
        "with File(Path(sys.argv[1]))._alone(): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    import sys

    done = subprocess.run([sys.executable, "-c", script, str(journal)], timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL

    def sleep(seconds):
        raise AssertionError("nobody holds the lock")  # Optuna's own would be held for 30 s

    monkeypatch.setattr(time, "sleep", sleep)
    Record(str(journal), "s", TWO, CHOICES).note("hello", 1)


def test_a_journal_that_is_no_journal_is_refused_in_a_sentence(tmp_path):
    for content in (b"hello\nthere\n", b"\x00\x01\n\n", b'{"a":1}\n{"b":2}\n'):
        path = tmp_path / "j"
        path.write_bytes(content)
        with pytest.raises((StorageError, ValueError), match="is no journal"):
            Record(str(path), "s", TWO, CHOICES)
        assert path.read_bytes() == content


def finished_trial(number):
    return Outcome(number, "COMPLETE", values=(0.5, 1.0))


def test_a_search_that_finds_others_trials_in_its_study_adds_none(tmp_path):
    """As a machine that wakes up after another has gone on in its place."""
    ours = Record(str(tmp_path / "j"), "s", TWO, CHOICES)
    ours.add(CHOICES.nth(0), {}, finished_trial(0))
    theirs = Record(str(tmp_path / "j"), "s", TWO, CHOICES)
    theirs.note("hello", 1)
    ours.add(CHOICES.nth(1), {}, finished_trial(1))  # a note is no trial
    theirs.add(CHOICES.nth(2), {}, finished_trial(2))
    ours.note("beat", 2)
    with pytest.raises(StorageError, match="another search adds trials to it as well"):
        ours.add(CHOICES.nth(2), {}, finished_trial(2))
    assert len(recorded(tmp_path / "j")) == 3


def test_beats_and_trials_are_written_at_once(tmp_path):
    record = Record(str(tmp_path / "j"), "s", TWO, CHOICES)
    over, filters = threading.Event(), list(warnings.filters)

    def beat():
        while not over.is_set():
            record.note("beat", 1)

    thread = threading.Thread(target=beat)
    thread.start()
    for number in range(100):
        record.add(CHOICES.nth(number), {}, finished_trial(number))
    over.set()
    thread.join()
    assert len(recorded(tmp_path / "j")) == 100
    assert warnings.filters == filters


# --- what others have left


class Away:
    """Guests of whom nobody has heard, one of which finishes its trial at the last moment."""

    def __init__(self, url):
        self.other = Record(str(url), "s", TWO, CHOICES)
        self.other.trials()

    def present(self):
        for trial in self.other.unfinished():
            self.other.finish(measure(trial.number, trial.chosen, TWO))
        return False

    def has(self, worker):
        return False

    def lost(self):
        return ()


def test_a_trial_that_is_finished_while_its_search_is_resumed_is_not_waited_for(tmp_path):
    with pytest.raises(Killed):
        coordinate(tmp_path / "j", "tpe", Shuffled(3, TWO, lives=4), n_trials=12)
    coordinate(tmp_path / "j", "tpe", Shuffled(3, TWO), n_trials=12, others=Away(tmp_path / "j"))
    coordinate(tmp_path / "alone", "tpe", InOrder(1, TWO), n_trials=12)
    assert recorded(tmp_path / "j") == recorded(tmp_path / "alone")


class Idle(Away):
    """A guest that has nothing to do."""

    def present(self):
        return True


@pytest.mark.parametrize("trials", [5, 20])
def test_what_was_recorded_is_counted_once_beside_guests(tmp_path, trials):
    coordinate(tmp_path / "j", "tpe", InOrder(1, TWO), n_trials=15)
    idle = Idle(tmp_path / "j")
    found = coordinate(tmp_path / "j", "tpe", Shuffled(2, TWO), n_trials=trials, others=idle)
    assert found.progress.done == trials
    assert len(recorded(tmp_path / "j")) == max(trials, 15)


# --- memory


@pytest.mark.slow
def test_wrong_usage_of_every_kind_has_one_exit_code(searches):
    """A key that is misspelt in the space, a runner without a budget, a study that is not there."""
    good = searches.config()
    said = searches.run(
        good, "--apply", "best", "--storage", "sqlite:///typo.db", "--project", "p", check=2
    )
    assert "ch: there is no study in typo.db; search first, or correct --storage" in said
    assert not (searches.folder / "typo.db").exists()
    misspelt, endless = searches.folder / "m.toml", searches.folder / "e.toml"
    misspelt.write_text(good.read_text().replace("weight_width", "weight_wdith"))
    said = searches.run(misspelt, check=2)
    path = "search.search_space.seed.seq_blocks_2.config.weight_wdith"
    assert f"ch: {path} is no key of integer; did you mean 'weight_width'?" in said
    lines = "basic_train]\n[search.strategy.sw_runner.basic_evaluation]"
    endless.write_text(good.read_text().replace("basic_evaluation]", lines))
    assert "ch: basic_train does not know when to end" in searches.run(endless, check=2)


@pytest.mark.slow
def test_memory_is_flat_over_2000_trials(searches):
    """From trial 500 on, each further one costs less than 18 kB, the page with it."""
    wide = "name = ['integer']\n" + "".join(
        f"{operand}_width = {{min = 2, max = 16}}\n{operand}_frac_width = {{min = 0, max = 12}}\n"
        for operand in ("data_in", "weight", "bias")
    )
    config = searches.config("n_trials = 500\nsampler = 'random'")
    text = config.read_text()
    head, tail = text.split("[search.search_space.seed.seq_blocks_2.config]\n")
    tail = "[search.strategy]" + tail.partition("[search.strategy]")[2]
    config.write_text(head + "[search.search_space.seed.seq_blocks_2.config]\n" + wide + tail)

    def peak(trials, out):
        config.write_text(config.read_text().replace("n_trials = 500", f"n_trials = {trials}"))
        process = searches.start(config, out=out)
        with process.stdout as said:
            said.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return used.ru_maxrss * 1024

    first = peak(500, "first")
    assert (peak(2000, "second") - first) / 1500 < 18_000
