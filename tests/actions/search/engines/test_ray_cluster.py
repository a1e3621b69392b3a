"""A real Ray on this machine, two workers, and everything that goes wrong on a cluster."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

NO_RAY = importlib.util.find_spec("ray") is None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NO_RAY, reason="needs ray: run `make test-all`"),
]

CONFIG = """
model = "jsc-tiny"
dataset = "jsc-sim"
task = "cls"
batch_size = 64
project = "p"
seed = 42
[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
[search.search_space.setup]
by = "type"
[search.search_space.seed.default.config]
name = ["NA"]
[search.search_space.seed.linear.config]
name = ["integer"]
data_in_width = [4, 8]
data_in_frac_width = [1, 2, 3]
weight_width = [2, 4, 8]
weight_frac_width = [1, 2, 3]
bias_width = [2, 4, 8]
bias_frac_width = [1, 2, 3]
[search.strategy]
name = "optuna"
[search.strategy.sw_runner.basic_evaluation]
data_loader = "val_dataloader"
num_samples = 256
[search.strategy.sw_runner.trouble]
[search.strategy.hw_runner.average_bitwidth]
compare_to = 32
[search.strategy.setup]
n_trials = 24
sampler = "tpe"
sampler_options.n_startup_trials = 6
cpus_per_trial = 0.5
{more}
[search.strategy.metrics]
accuracy.direction = "maximize"
average_bitwidth.direction = "minimize"
"""
# on Ray, trial 5 loses its process once and trial 9 hangs; in process, trial 9 fails
TROUBLE = """
import os, signal, sys, time
from pathlib import Path
from chop.actions.search.metrics.base import metric

@metric("trouble", side="software", better="minimize")
def trouble(trial) -> float:
    "Something that goes wrong."
    on_ray, once = "ray" in sys.modules, Path(__file__).with_name("killed")
    if trial.number == 9:
        if on_ray:
            time.sleep(600)
        raise ArithmeticError("it hangs elsewhere")
    if trial.number == 5 and on_ray and not once.exists():
        once.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.0
"""
SECONDS = 600  # against a search that hangs; nothing depends on what is done within them


@pytest.fixture
def alone():
    """Settings under which Ray finds no cluster but its own, and leaves nothing behind."""
    # short, because Ray puts sockets there
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        yield {"RAY_TMPDIR": folder, "RAY_ADDRESS": "", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def folder(tmp_path, checkpoint):
    """A file, weights, and a runner in a file of the user."""
    shutil.copy(checkpoint, tmp_path / "w.pt")
    (tmp_path / "trouble.py").write_text(TROUBLE)
    (tmp_path / "here.toml").write_text(CONFIG.format(more=""))
    (tmp_path / "ray.toml").write_text(CONFIG.format(more="trial_timeout = 4"))
    return tmp_path


def finished(folder, name, environment, *flags):
    """What the command says when it is over."""
    words = ["search", "--config", folder / f"{name}.toml", "--project-dir", folder / name]
    words += ["--load", folder / "w.pt", "--load-type", "pt", "--import", folder / "trouble.py"]
    words = map(str, [*words, "--no-progress", "--cpu", "0", *flags])
    command, environment = [sys.executable, "-m", "chop", *words], os.environ | environment
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def trials(folder, name):
    """log.json without times, and without what else a trial that failed has to tell."""
    path = folder / name / "p" / "software" / "search_ckpts" / "log.json"
    rows = json.loads(path.read_text())
    for row in rows.values():
        passing = ["datetime_start", "datetime_complete", "duration"]
        if row["state"] == "FAIL":
            passing += [key for key in row if key.endswith(("_metrics", "_error"))]
        for key in passing:
            del row[key]
    return rows


def ray_processes(environment):
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if environment["RAY_TMPDIR"] in line]


def test_a_killed_worker_and_a_hanging_trial_change_nothing_in_the_table(folder, alone):
    said = finished(folder, "ray", alone, "--engine", "ray", "--workers", "2")
    finished(folder, "here", alone)
    there = trials(folder, "ray")
    assert len(there) == 24
    assert there == trials(folder, "here")
    assert (folder / "killed").exists()
    assert re.search(r"Trial 5: its Ray worker was lost: .*; running it again", said)
    assert there["5"]["state"] == "COMPLETE"
    assert "Trial 9 failed: the trial took longer than trial_timeout = 4 seconds" in said
    assert there["9"]["state"] == "FAIL"
    assert not [word for word in ("raylet", "authentication", "Traceback") if word in said]
    assert ray_processes(alone) == []


POPULATIONS = """
[search.strategy.sw_runner.population_train]
population = 4
max_epochs = 2
batch_size = 8192
learning_rate = 0.02
{more}
"""


def populations(folder, name, more=""):
    """A file whose 8 trials are trained 4 at a time, in two populations at once."""
    text = CONFIG.format(more="in_flight = 8").replace("n_trials = 24", "n_trials = 8")
    start, end = text.index("[search.strategy.sw_runner.basic"), text.index("[search.strategy.hw")
    trouble = "[search.strategy.sw_runner.trouble]\n"
    runners = trouble + POPULATIONS.format(more=more)
    (folder / f"{name}.toml").write_text(text[:start] + runners + text[end:])


def scores(folder, name):
    path = folder / name / "p" / "software" / "search_ckpts" / "search.json"
    rows = json.loads(path.read_text())["trials"]
    return [(t["config"], t["state"], t["software_metrics"]["loss"]) for t in rows]


def test_a_population_whose_worker_is_killed_is_trained_again(folder, alone):
    populations(folder, "ray")
    populations(folder, "here")
    said = finished(folder, "ray", alone, "--engine", "ray", "--workers", "2")
    finished(folder, "here", alone)
    assert (folder / "killed").exists()
    for number in range(4, 8):
        assert re.search(rf"Trial {number}: its Ray worker was lost: .*; running it again", said)
    assert "Trial 0:" not in said
    assert scores(folder, "ray") == scores(folder, "here")
    assert ray_processes(alone) == []


def test_why_workers_of_ray_train_one_by_one_is_in_the_log(folder, alone):
    populations(folder, "ray", more="distill = 0.5")
    said = finished(folder, "ray", alone, "--engine", "ray", "--workers", "2")
    assert said.count("are trained one by one: distill needs the parent's scores") >= 1
    assert len(scores(folder, "ray")) == 8


def test_an_engine_that_cannot_start_its_workers_gives_no_warning_and_ends(alone, monkeypatch):
    for key, value in alone.items():
        monkeypatch.setenv(key, value)
    module = importlib.import_module("chop.actions.search.run.engines.ray")
    before = signal.getsignal(signal.SIGTERM)
    engine = module.RayEngine(b"no problem at all", 1, cpus=0.5)
    try:
        assert signal.getsignal(signal.SIGTERM) is before
        with pytest.raises(ValueError, match="a worker of the Ray cluster could not start: "):
            engine.wait(SECONDS)
    finally:
        engine.close()
    end = time.monotonic() + 10
    while ray_processes(alone) and time.monotonic() < end:
        time.sleep(0.1)
    assert ray_processes(alone) == []
