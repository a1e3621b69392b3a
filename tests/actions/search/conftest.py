"""Searches without a network, and searches by `ch` in processes of their own."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import optuna
import pytest
import torch

from chop.actions.search.metrics.base import RUNNERS
from chop.actions.search.metrics.outcome import Outcome
from chop.actions.search.run.loop import SearchLoop
from chop.actions.search.samplers.base import SamplerContext, strategy_named
from chop.actions.search.space.choices import Choices, OneOf, Parameter, Range
from chop.actions.search.space.uniform import uniform_designs
from chop.actions.search.spec.settings import settings_of
from chop.actions.search.store.study_store import StudyStore

CHOICES = Choices(
    [
        Parameter("a/name", OneOf(("integer", "log", None))),
        Parameter("a/width", OneOf((2, 4, 8)), "a/name", ("integer",)),
        Parameter("a/base", Range(1, 6), "a/name", ("integer", "log")),
        Parameter("b", Range(0, 20, 2)),
        Parameter("c", OneOf((1, 2, 3, 5))),
        Parameter("d", OneOf(("only",))),
    ]
)
TWO = ("maximize", "minimize")
PATIENCE = 600  # seconds, against tests that hang; none depends on what is done within them
NUMBERS = Choices([Parameter(key, Range(-8, 8)) for key in "xyz"])


def tables(directions=TWO, **setup):
    """The tables of a file with metrics of those directions."""
    names = ("accuracy", "average_bitwidth")
    return {
        "search_space": {},
        "strategy": {
            "sw_runner": {"basic_evaluation": {"num_samples": 8}},
            "hw_runner": {"average_bitwidth": {}},
            "metrics": {n: {"direction": d} for n, d in zip(names, directions, strict=False)},
            "setup": setup,
        },
    }


def measure(number, chosen, directions):
    """What a fake trial gives: some designs fail, and the rest depends on the design alone."""
    weight = random.Random(repr(sorted(chosen.items(), key=str))).random()
    if weight < 0.08:
        return Outcome(number, "FAIL", error="Traceback\nValueError: unlucky")
    values = (weight, float(sum(v for v in chosen.values() if isinstance(v, int))))
    return Outcome(number, "COMPLETE", values=values[: len(directions)])


class Killed(BaseException):
    """The process is gone: nothing is tidied up."""


class Shuffled:
    """An engine whose tasks end in a random order, and which may be killed at any moment."""

    in_order = False

    def __init__(self, slots, directions, *, seed=0, lives=10**9):
        self.slots, self.directions, self.lives = slots, directions, lives
        self._random, self._tasks = random.Random(seed), []

    def free(self):
        return self.slots - len(self._tasks)

    def submit(self, task):
        assert self.free() > 0
        self._tasks.append(task)

    def wait(self, seconds):
        assert self._tasks, "nothing runs, and nothing was submitted"
        self.lives -= 1
        if self.lives < 0:
            raise Killed
        task = self._tasks.pop(self._random.randrange(len(self._tasks)))
        return [measure(task.number, task.chosen, self.directions)]

    def close(self):
        self._tasks.clear()


class InOrder(Shuffled):
    """One task at a time."""

    in_order = True


def run_loop(
    path, sampler, engine, *groups, choices=CHOICES, seed=7, study="s", table=None, **setup
):
    """Begin or resume a search; the loop when it is over."""
    settings = settings_of(table or tables(engine.directions, sampler=sampler, **setup))
    store = StudyStore(str(path), study, settings.objectives.directions, choices)
    facts = (choices, settings.objectives.directions, settings.n_trials, seed)
    uniform = uniform_designs(choices) if settings.uniform_first else ()
    context = SamplerContext(*facts, uniform=uniform)
    make = strategy_named(sampler) if isinstance(sampler, str) else sampler
    strategy = make(context, **settings.sampler_options)
    loop = SearchLoop(strategy, engine, store, settings, *groups)
    with contextlib.closing(store):
        loop.resume(store.read_trials())
        loop.run()
    return loop


def killed_again_and_again(run, make_engine, seed, most):
    """Call `run` with new engines, which live for less than `most` outcomes, until it returns."""
    moments = random.Random(seed)
    for life in range(100):
        with contextlib.suppress(Killed):
            run(make_engine(seed=life, lives=moments.randrange(1, most)))
            break
    assert life > 1


def recorded(path, choices=CHOICES, directions=TWO, study="s"):
    """The table of trials in a storage, without times."""
    store = StudyStore(str(path), study, directions, choices, write=False)
    with contextlib.closing(store):
        stored = store.read_trials()
    trials = [(t.number, t.chosen, t.outcome.state, t.outcome.values) for t in stored]
    assert [number for number, *_ in trials] == list(range(len(trials)))
    return trials


@pytest.fixture(scope="module")
def no_disk():
    """Do not wait for the disk: these tests do not cut the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def own_runners():
    """Remove the runners that a test registers, which nothing but a test wants to do."""
    known = set(RUNNERS)
    yield
    for name in set(RUNNERS) - known:
        del RUNNERS._items[name]


# --- a server of our own

GUARDED = "guarded"  # the role that has to give its password


def postgres_program(name):
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    program = shutil.which(name) or next(iter(installed), None)
    if program is None:
        pytest.skip(f"there is no PostgreSQL on this machine: {name} is not installed")
    return str(Path(program).resolve())


def somebody():
    """How to run a program as somebody other than root, whom PostgreSQL refuses."""
    if os.getuid() != 0:
        return [], None
    import pwd

    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            return ["setpriv", *ids], user
    pytest.fail("PostgreSQL cannot run as root, and there is no user postgres or nobody")


@pytest.fixture(scope="session")
def postgres(package):
    """The URL of a server on the loopback, without a database of anybody's."""
    package("psycopg")
    initdb, pg_ctl = postgres_program("initdb"), postgres_program("pg_ctl")
    as_somebody, user = somebody()
    folder = Path(tempfile.mkdtemp(prefix="mase-pg-"))  # whose parents anybody may enter
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(*command):
        done = subprocess.run(
            [*as_somebody, *command], capture_output=True, text=True, cwd=folder, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr

    data = folder / "data"
    run(initdb, "-D", str(data), "-U", "mase", "-A", "trust", "--no-sync")
    rules = data / "pg_hba.conf"
    rules.write_text(f"host all {GUARDED} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
    flags = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    run(pg_ctl, "-D", str(data), "-l", str(folder / "log"), "-w", "-o", flags, "start")
    yield f"postgresql://mase:secret@127.0.0.1:{port}/postgres"
    run(pg_ctl, "-D", str(data), "-m", "immediate", "stop")
    shutil.rmtree(folder)


@pytest.fixture(params=["journal", "sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def storage(request, tmp_path):
    if request.param == "postgresql":
        return request.getfixturevalue("postgres")
    return {"journal": "", "sqlite": "sqlite:///"}[request.param] + str(tmp_path / "study.db")


def optuna_storage(url):
    """A storage as Optuna's own classes open it."""
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    if "://" not in url:
        return JournalStorage(JournalFileBackend(url))
    return RDBStorage(url.replace("postgresql://", "postgresql+psycopg://"))


# --- the command


SPACE = """
[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
[search.search_space.setup]
by = "name"
[search.search_space.seed.default.config]
name = ["NA"]
[search.search_space.seed.seq_blocks_2.config]
name = ["integer"]
data_in_width = [4, 8]
data_in_frac_width = ["NA"]
weight_width = [2, 4, 8]
weight_frac_width = ["NA"]
bias_width = [2, 4, 8]
bias_frac_width = ["NA"]
"""
STRATEGY = """
[search.strategy]
name = "optuna"
eval_mode = true
[search.strategy.sw_runner.basic_evaluation]
data_loader = "val_dataloader"
num_samples = 64
[search.strategy.hw_runner.average_bitwidth]
compare_to = 32
"""
METRICS = """
[search.strategy.metrics]
accuracy.scale = 1.0
accuracy.direction = "maximize"
average_bitwidth.scale = 0.2
average_bitwidth.direction = "minimize"
"""
HEAD = """
model = "jsc-tiny"
dataset = "jsc-sim"
task = "cls"
batch_size = 64
project = "p"
seed = 42
"""
# a runner that is told by its options what to do in which trial, and by the environment of a
# process, which is no part of the study, after how many trials to wait until there is a file `go`
ODD = '''
import itertools, os, signal, time
from pathlib import Path
from chop.actions.search.metrics.base import metric

BEGUN = itertools.count()

@metric("odd", side="software", better="minimize")
def odd(trial, *, what: str = "", at: int = 3, below: str = "", seconds: float = 0.0) -> float:
    """Something that goes wrong."""
    time.sleep(seconds)
    if trial.number >= 0 and next(BEGUN) >= float(os.environ.get("ODD_TRIALS", "inf")):
        while not (Path(below) / "go").exists():
            time.sleep(0.01)
    if trial.number == at or at < 0:
        once = Path(below) / f"once-{trial.number}"
        if what == "raise":
            raise ArithmeticError("the planted error")
        if what == "hang":
            time.sleep(600)
        if what == "die" or (what == "die once" and not once.exists()):
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return float(trial.number % 3)
'''


def config_text(setup, metrics=METRICS, runners=""):
    """A file of a search with those lines in `setup`."""
    return f"{HEAD}{SPACE}{STRATEGY}{runners}[search.strategy.setup]\n{setup}\n{metrics}"


def search_words(config, checkpoint, *flags, out=None):
    """The words of `ch search`, which writes into `out` beside the file."""
    words = ["search", "--config", config, "--project-dir", out or config.with_name("out")]
    words += ["--load", checkpoint, "--load-type", "pt", "--no-progress", *flags]
    return list(map(str, words))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Weights of jsc-tiny; nobody trained them, but no two classes are the same to them."""
    from chop.dataset import MaseDataModule
    from chop.models import get_model

    torch.manual_seed(3)
    data = MaseDataModule("jsc-sim", batch_size=64)
    model = get_model("jsc-tiny", task="cls", dataset_info=data.dataset_info)
    path = tmp_path_factory.mktemp("weights") / "w.pt"
    torch.save(model.state_dict(), path)
    return path


class Searches:
    """`ch search` on a small file, in processes of their own."""

    def __init__(self, folder, checkpoint):
        self.folder, self.checkpoint = folder, checkpoint
        self.started = []
        (folder / "odd.py").write_text(ODD)

    def config(self, setup="", odd="", metrics=METRICS, name="a.toml"):
        """The file with those lines in `setup`, and with the odd runner's options."""
        if odd:
            odd = f"[search.strategy.sw_runner.odd]\nbelow = '{self.folder}'\n{odd}\n"
        path = self.folder / name
        path.write_text(config_text(setup, metrics, odd))
        return path

    def start(self, config, *flags, out="out", wrap=(), trials=None):
        """The process, in a group of its own; after so many `trials` it waits for the gate."""
        words = search_words(config, self.checkpoint, *flags, out=self.folder / out)
        command = [*wrap, sys.executable, "-m", "chop", *words]
        if "[search.strategy.sw_runner.odd]" in Path(config).read_text():
            command += ["--import", str(self.folder / "odd.py")]
        environment = os.environ | ({} if trials is None else {"ODD_TRIALS": str(trials)})
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "cwd": self.folder}
        process = subprocess.Popen(
            command, text=True, env=environment, start_new_session=True, **options
        )
        self.started.append(process)
        return process

    def open_gate(self):
        """Let go on whoever waits."""
        (self.folder / "go").touch()

    def run(self, config, *flags, check=0, **where):
        """Its output, when it is over."""
        return self.ended(self.start(config, *flags, **where), check)

    def ended(self, process, check=0):
        """What a process has said, when it is over."""
        try:
            said, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it does not end\n{self.kill(process)}")
        assert process.returncode == check, said
        return said

    def signal(self, process, number):
        """Tell a process and all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    def kill(self, process):
        """The process with all its children; what it said."""
        self.signal(process, signal.SIGKILL)
        return process.communicate(timeout=PATIENCE)[0]

    def until(self, condition, *processes):
        """Wait for what processes shall bring about; what they said if they did not."""
        end = time.monotonic() + PATIENCE
        while not condition():
            over = any(process.poll() is not None for process in processes)
            if time.monotonic() > end or (over and not condition()):
                said = "\n".join(self.kill(process) for process in processes)
                pytest.fail(f"it did not come to that\n{said}")
            time.sleep(0.01)

    def results(self, out="out"):
        return self.folder / out / "p" / "software" / "search_ckpts"

    def table(self, out="out"):
        """log.json without times."""
        rows = json.loads((self.results(out) / "log.json").read_text())
        times = ("datetime_start", "datetime_complete", "duration")
        return {n: {k: v for k, v in row.items() if k not in times} for n, row in rows.items()}

    def finished(self, url, study):
        """The attributes of the finished trials in a storage, by number, as Optuna reads them."""
        if "://" not in url and not Path(url).exists():
            return {}
        storage = optuna_storage(url)
        try:
            trials = optuna.load_study(study_name=study, storage=storage).trials
        except KeyError:  # not made yet
            return {}
        finally:
            if hasattr(storage, "engine"):
                storage.remove_session()
                storage.engine.dispose()
        return {t.number: t.user_attrs for t in trials if t.state.is_finished()}

    def written(self, out="out"):
        """How many trials the journal has, finished or not."""
        path = self.results(out) / "search.journal"
        return path.read_bytes().count(b'"op_code":4') if path.exists() else 0


@pytest.fixture
def searches(tmp_path, checkpoint):
    """`ch search` in processes, none of which outlives the test."""
    made = Searches(tmp_path, checkpoint)
    yield made
    for process in made.started:
        if process.poll() is None:
            made.kill(process)
        process.stdout.close()
