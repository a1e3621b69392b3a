"""Whatever dies, fills up, raises or hangs: what was finished is there, and the search goes on."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys

import pytest

from chop.actions.search.metrics.base import metric
from chop.actions.search.metrics.objectives import Constraint, Objective, Objectives
from chop.actions.search.store.study_store import StudyStore

from . import test_predecessor as predecessor
from .conftest import CHOICES, PATIENCE, TWO, InOrder, Killed, recorded, run_loop
from .runners.conftest import make_scene

SLOWLY = "seconds = 0.05"

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


# --- kill -9


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_every_finished_trial_survives_kill_9(searches, storage, workers):
    study = f"kill{workers}"
    config = searches.config("n_trials = 24", odd=SLOWLY)
    searches.run(config, out="alone")
    flags = ["--storage", storage, "--study", study, "--workers", workers]
    process = searches.start(config, *flags, trials=10)
    searches.until(lambda: len(searches.finished(storage, study)) >= 6, process)
    searches.kill(process)
    before = searches.finished(storage, study)
    said = searches.run(config, *flags, "--resume")
    assert f"{len(before)} trials are done" in said
    after = searches.finished(storage, study)
    assert {n: after[n] for n in before} == before
    assert searches.table() == searches.table("alone")
    assert ":secret@" not in said
    assert ":secret@" not in (searches.results() / "search.json").read_text()


@pytest.mark.slow
def test_a_second_process_on_a_study_is_refused_and_told_of_ray(searches, storage):
    config = searches.config("n_trials = 6", odd=SLOWLY)
    where = ["--storage", storage, "--study", "shared"]
    first = searches.start(config, *where, trials=2)
    searches.until(lambda: len(searches.finished(storage, "shared")) >= 2, first)
    said = searches.run(config, *where, "--resume", out="second", check=2)
    last = said.strip().splitlines()[-1]
    assert "another process is running the study 'shared'" in last
    assert "--engine ray" in last
    searches.open_gate()
    searches.ended(first)
    searches.run(config, out="alone")
    assert searches.table() == searches.table("alone")


# --- workers and trials


@pytest.mark.slow
def test_a_worker_that_was_killed_loses_nothing(searches):
    config = searches.config("n_trials = 12", odd="what = 'die once'")
    said = searches.run(config, "--workers", 2)
    assert "Trial 3: its process ended with signal 9; running it again" in said
    config = searches.config("n_trials = 12", odd="what = 'nothing'")
    searches.run(config, out="alone")
    assert searches.table() == searches.table("alone")


@pytest.mark.slow
def test_a_trial_that_kills_every_worker_fails_in_the_end(searches):
    config = searches.config("n_trials = 6\nretries = 1", odd="what = 'die'")
    said = searches.run(config, "--workers", 2)
    row = searches.table()["3"]
    assert row["state"] == "FAIL"
    assert "signal 9 (2 times)" in row["user_attrs_error"]
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


@pytest.mark.parametrize(
    ("fail_fast", "bad", "said"),
    [
        (True, (2,), "trial 2 failed: ArithmeticError"),
        (False, range(4), "no trial was completed; the first one failed with: ArithmeticError"),
    ],
)
def test_a_search_that_is_cut_short_leaves_its_files(tmp_path, own_runners, fail_fast, bad, said):
    @metric("luck", side="hardware", better="maximize")
    def luck(trial):
        if trial.number in bad:
            raise ArithmeticError("planted")
        return 1.0

    runners = {"average_bitwidth": {}, "luck": {}}
    table = predecessor.tables(hw_runner=runners, setup={"n_trials": 4, "fail_fast": fail_fast})
    with pytest.raises(ValueError, match=said):
        predecessor.run(make_scene(), tmp_path, table)
    states = [row["state"] for row in json.loads((tmp_path / "log.json").read_text()).values()]
    assert states == (["COMPLETE", "COMPLETE", "FAIL"] if fail_fast else ["FAIL"] * 4)
    assert bool(json.loads((tmp_path / "best.json").read_text())) is fail_fast


@pytest.mark.parametrize("name", ["accuracy", "bitops"])
def test_no_objective_and_no_constraint_takes_what_is_no_number(name):
    objectives = Objectives(
        (Objective("accuracy", "maximize"),), None, (Constraint("bitops", "<=", 6.0),)
    )
    metrics = {"accuracy": 0.5, "bitops": 5.0, "loss": math.nan}
    assert objectives.values(metrics) == [0.5]
    with pytest.raises(ValueError, match=f"the metric {name} is nan"):
        objectives.values(metrics | {name: math.nan})


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
    assert "no trial was completed; the first one failed with: ArithmeticError" in last
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
    name = signal.Signals(number).name
    assert said.endswith(f"ch: stopped by {name}; --resume continues from here\n")
    assert f"{name}: stopping, and writing the results and the report first" in said
    assert "this step" not in said, "a search has trials"
    assert "Traceback" not in said
    assert "Report: " in said
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
    before = len(searches.finished(str(searches.results() / "search.journal"), "search"))
    assert 0 < before < 30
    said = searches.run(config, "--resume")
    assert f"{before} trials are done" in said
    assert searches.table() == searches.table("alone")


@pytest.fixture
def journal(tmp_path):
    """A search that was killed after a few trials."""
    path = tmp_path / "j"
    with pytest.raises(Killed):
        run_loop(path, "tpe", InOrder(1, TWO, lives=6), n_trials=12)
    return path


@pytest.mark.parametrize("cut", [1, 20])
def test_a_half_written_last_line_costs_its_trial_alone(tmp_path, journal, cut):
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-cut])
    run_loop(journal, "tpe", InOrder(1, TWO), n_trials=12)
    run_loop(tmp_path / "alone", "tpe", InOrder(1, TWO), n_trials=12)
    assert recorded(journal) == recorded(tmp_path / "alone")


def test_a_lock_does_not_outlive_its_process(journal):
    script = (
        "import os, signal, sys\n"
        "from chop.actions.search.store.lock import lock_descriptor\n"
        "assert lock_descriptor(os.open(sys.argv[1], os.O_RDWR))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(journal)], timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL
    StudyStore(str(journal), "s", TWO, CHOICES).close()


@pytest.mark.slow
def test_wrong_usage_of_every_kind_has_one_exit_code(searches):
    """A key that is misspelt in the space, a runner without a budget, a study that is not there."""
    good = searches.config()
    said = searches.run(good, "--apply", "best", "--storage", "sqlite:///typo.db", check=2)
    assert "; correct --storage and --study, or " in said
    assert not (searches.folder / "typo.db").exists()
    misspelt, endless = searches.folder / "m.toml", searches.folder / "e.toml"
    misspelt.write_text(good.read_text().replace("weight_width", "weight_wdith"))
    said = searches.run(misspelt, check=2)
    path = "search.search_space.seed.seq_blocks_2.config.weight_wdith"
    assert f"{misspelt}: {path} is not a key of integer; did you mean 'weight_width'?" in said
    lines = "basic_train]\n[search.strategy.sw_runner.basic_evaluation]"
    endless.write_text(good.read_text().replace("basic_evaluation]", lines))
    assert "basic_train has no budget" in searches.run(endless, check=2)


# --- memory


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
