"""The parent of a search: trained once, to the end, with the options of the file."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from .conftest import METRICS, PATIENCE, SPACE, STRATEGY

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")

EPOCHS = 3
FILE = f"""
model = "jsc-tiny"
dataset = "jsc-sim"
task = "cls"
project = "p"
seed = 42
batch_size = 4096
max_epochs = {EPOCHS}
learning_rate = 1e-2
accelerator = "cpu"
num_workers = 0
[search]
train_parent = true
{SPACE}
{STRATEGY}
[search.strategy.setup]
n_trials = 4
{METRICS}
"""
# waits for a file `go` before step PAUSE_AT of the training, if the environment has that
GATE = """
import itertools, os, time
from pathlib import Path
from torch.optim.optimizer import register_optimizer_step_pre_hook

HERE, STEPS = Path(__file__).parent, itertools.count(1)

def wait(*_):
    if next(STEPS) == int(os.environ.get("PAUSE_AT", "0")):
        (HERE / "waiting").touch()
        while not (HERE / "go").exists():
            time.sleep(0.01)

register_optimizer_step_pre_hook(wait)
"""


class Runs:
    """`ch search` on a file with `train_parent`, cut while the parent trains."""

    def __init__(self, folder):
        self.folder, self.started = folder, []
        self.file, self.gate = folder / "a.toml", folder / "gate.py"
        self.file.write_text(FILE)
        self.gate.write_text(GATE)

    def words(self, *flags, out="out"):
        given = ["--config", self.file, "--project-dir", self.folder / out, "--no-progress", *flags]
        return ["search", *map(str, given)]

    def software(self, out="out"):
        return self.folder / out / "p" / "software"

    def cut(self, number, step, meanwhile=lambda: None):
        """Send the signal before that step of the training; the exit code and what was said."""
        command = [sys.executable, "-m", "chop", *self.words("--import", self.gate)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PAUSE_AT": str(step)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(command, **pipes, cwd=self.folder, env=environment) as process:
            self.started.append(process)
            while process.poll() is None and not (self.folder / "waiting").exists():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.01)
            meanwhile()
            process.send_signal(number)
            if number != signal.SIGKILL:
                (self.folder / "go").touch()
            said, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, said

    def last_epoch(self, out="out"):
        """The epochs that the last checkpoint of the parent has behind it."""
        file = self.software(out) / "training_ckpts" / "last.ckpt"
        return torch.load(file, weights_only=True)["epoch"]

    def tables(self, out="out"):
        """best.json, log.json and the trials of search.json, without times and workers."""
        folder = self.software(out) / "search_ckpts"
        best, log, page = (
            json.loads((folder / name).read_text())
            for name in ("best.json", "log.json", "search.json")
        )
        timed = ("datetime_start", "datetime_complete", "duration", "seconds", "started", "worker")
        for row in [*log.values(), *page["trials"]]:
            for key in timed:
                row.pop(key, None)
        kept = ("trials", "front", "chosen", "importance", "baseline", "weights")
        return best, log, {key: page[key] for key in kept}


@pytest.fixture
def runs(tmp_path):
    made = Runs(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.wait()


CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}


QUICK = (signal.SIGKILL, ())
CASES = list(itertools.product(CODES, ((), ("--resume",))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "flags"),
    [pytest.param(*case, marks=() if case == QUICK else pytest.mark.slow) for case in CASES],
)
def test_a_parent_whose_training_was_cut_is_trained_to_the_end(runs, here, number, flags):
    code, said = runs.cut(number, step=20)
    assert code == CODES[number], said
    assert "Traceback" not in said
    if number != signal.SIGKILL:
        assert said.strip().splitlines()[-1].endswith("--resume continues from here")
    assert 1 <= runs.last_epoch() < EPOCHS
    code, _, said = here(*runs.words(*flags))
    assert code == 0, said
    assert "Reusing the trained parent" not in said
    assert runs.last_epoch() == EPOCHS
    assert here(*runs.words(out="alone"))[0] == 0
    assert runs.tables() == runs.tables("alone")


@pytest.fixture
def trained(runs, here):
    """A search whose parent is trained, and whose trials are done."""
    assert here(*runs.words())[0] == 0
    return runs


def test_a_trained_parent_is_taken_as_it_is(trained, here):
    before = (trained.software() / "training_ckpts" / "best.ckpt").read_bytes()
    code, _, said = here(*trained.words("--resume"))
    assert code == 0, said
    assert "Reusing the trained parent" in said
    assert (trained.software() / "training_ckpts" / "best.ckpt").read_bytes() == before


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("flags", "difference"),
    [
        (("--max-epochs", 5), "max_epochs = 3, not 5"),
        (("--learning-rate", 1e-3), "learning_rate = 0.01, not 0.001"),
        (("--seed", 7), "seed = 42, not 7"),
        (("--batch-size", 512), "batch_size = 4096, not 512"),
        (("jsc-s", "jsc-sim"), "model = jsc-tiny, not jsc-s"),
    ],
)
def test_a_parent_of_other_options_is_refused(runs, here, flags, difference):
    words = runs.words()
    runs.file.write_text(FILE.replace("n_trials = 4", "n_trials = 1"))
    assert here(*words)[0] == 0
    before = {file: file.read_bytes() for file in files_in(runs.software())}
    code, _, said = here(*words, *flags)
    last = said.strip().splitlines()[-1]
    assert code == 2, said
    assert last.startswith("ch: the parent ")
    assert f"was trained with {difference}; " in last
    assert "--load-type pl" in last
    assert {file: file.read_bytes() for file in files_in(runs.software())} == before


def files_in(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def interrupted(here, words, step=20):
    """Run until that step of the training; the signal comes from this process itself."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    steps = iter(range(1, 10**6))
    hook = register_optimizer_step_pre_hook(
        lambda *_: os.kill(os.getpid(), signal.SIGINT) if next(steps) == step else None
    )
    code, _, said = here(*words)
    hook.remove()
    assert code == 130, said


@pytest.mark.sampled(1)
@pytest.mark.parametrize("step", [3, 20])  # before and after the first epoch has ended
def test_resume_finds_a_cut_training_in_the_folder_of_its_date(runs, here, step):
    runs.file.write_text(FILE.replace('project = "p"\n', ""))
    interrupted(here, runs.words(), step)
    (folder,) = (runs.folder / "out").iterdir()
    yesterday = folder.rename(folder.with_name("jsc-tiny_classification_jsc-sim_2020-01-31"))
    code, _, said = here(*runs.words("--resume"))
    assert code == 0, said
    assert "Resumed from" in said
    assert (yesterday / "software" / "search_ckpts" / "best.json").exists()


def test_resume_of_a_cut_training_leaves_an_earlier_study_alone(runs, here):
    """The parent of the second search was not yet trained when it was stopped."""
    assert here(*runs.words())[0] == 0
    shutil.rmtree(runs.software() / "training_ckpts")
    log = (runs.software() / "search_ckpts" / "log.json").read_bytes()
    interrupted(here, runs.words())
    code, _, said = here(*runs.words("--resume"))
    assert code == 0, said
    folder = runs.software() / "search_ckpts"
    assert {file.stem for file in folder.glob("*.journal")} == {"search", "search-1"}
    assert (folder / "search" / "log.json").read_bytes() == log


def test_a_training_that_nobody_searched_for_is_not_resumed_by_a_search(runs, here):
    runs.file.write_text(FILE.replace('project = "p"\n', ""))
    train = ["jsc-tiny", "jsc-sim", "--max-epochs", 1, "--batch-size", 4096, "--no-progress"]
    assert here("train", *train, "--project-dir", runs.folder / "out")[0] == 0
    code, _, said = here(*runs.words("--resume"))
    assert code == 2
    assert "ch: --resume: there is no search in " in said


@pytest.mark.slow
def test_a_parent_that_was_killed_in_its_first_epoch_is_trained_from_the_start(runs, here):
    runs.cut(signal.SIGKILL, step=3)
    code, _, said = here(*runs.words("--resume"))
    assert code == 0, said
    assert here(*runs.words(out="alone"))[0] == 0
    assert runs.tables() == runs.tables("alone")


@pytest.mark.slow
def test_the_report_of_a_search_whose_parent_is_trained_says_so(runs, here):
    said = []
    report = ("report", runs.folder / "out" / "p")
    runs.cut(signal.SIGKILL, step=20, meanwhile=lambda: said.extend(here(*report)))
    assert said[0] == 2
    assert "has no trials yet, as its parent is being trained" in said[2]
    code, _, said = here(*report)
    assert code == 2
    assert "was cut off before its first trial; continue it with `ch search … --resume`" in said
    assert said.count("\n") == 1
