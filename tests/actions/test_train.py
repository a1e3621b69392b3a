"""`ch train` and `ch test` from the outside, and their functions as the labs call them."""

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import torch

from chop.actions import test as score_on_test_split
from chop.actions import train, validate
from chop.dataset import MaseDataModule
from chop.dataset.jsc_sim import _jets
from chop.models import get_model, get_model_info

RUN = ("train", "jsc-tiny", "jsc-sim", "--batch-size", "256", "--learning-rate", "0.01")


def command(tmp_path, *words):
    """A process that runs `ch` with these words."""
    return [sys.executable, "-m", "chop", *words, "--project-dir", str(tmp_path / "out")]


def software(tmp_path):
    (project,) = (tmp_path / "out").iterdir()
    return project / "software"


def weights(file):
    return torch.load(file, weights_only=True)["state_dict"]


def equal(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_a_network_is_trained_and_tested_by_two_commands(ch, tmp_path):
    _jets.cache_clear()  # whose reading is announced once per process
    done = ch(*RUN, "--max-epochs", "2")
    for line in (
        "Initialising model 'jsc-tiny'...",
        "Initialising dataset 'jsc-sim'...",
        "Project will be created at",
        "Training model 'jsc-tiny'...",
        "117 trainable parameters",
        "Training is completed",
    ):
        assert line in done.stderr
    assert "weight decay" not in done.stderr.lower(), "there is none"
    folder = software(tmp_path)
    assert folder.parent.name == f"jsc-tiny_classification_jsc-sim_{date.today().isoformat()}"
    assert (folder.parent / "hardware").is_dir()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["dataset"]["simulated"] is True
    assert summary["dataset"]["fingerprints"]["train"].startswith("sha256:")
    assert summary["progress"]["epoch"] == 2
    assert summary["config"]["batch_size"] == 256
    assert 0.4 < summary["metrics"]["val_acc_epoch"] < 0.8
    assert ET.parse(folder / "curves.svg").getroot().tag.endswith("svg")
    assert list((folder / "tensorboard/lightning_logs/version_0").glob("events.*"))

    best = folder / "training_ckpts" / "best.ckpt"
    done = ch("test", "jsc-tiny", "jsc-sim", "--load", best, "--load-type", "pl")
    for text in ("Testing model 'jsc-tiny'...", "test_acc_epoch", "test_loss_epoch", "(simulated)"):
        assert text in done.stderr
    scores = json.loads((folder / "checkpoints" / "test_metrics.json").read_text())
    assert 0.4 < scores["metrics"]["test_acc_epoch"] < 0.8
    assert set(scores["class_accuracy"]) == set("gqtwz")


def test_a_complete_run_is_left_as_it_is(ch, tmp_path):
    ch(*RUN, "--max-epochs", "1")
    folder = software(tmp_path)
    before = {p: p.read_bytes() for p in folder.glob("*.*")}
    done = ch(*RUN, "--max-epochs", "1", "--resume")
    assert "This run is complete after 1 epochs; raise --max-epochs to continue" in done.stderr
    assert {p: p.read_bytes() for p in folder.glob("*.*")} == before
    done = ch(*RUN, "--max-epochs", "2", "--resume")
    assert "Epoch 2/2" in done.stderr
    assert "Test it with: ch test jsc-tiny jsc-sim --load" in done.stderr


def test_a_second_run_on_the_same_day_keeps_the_first(ch, tmp_path):
    ch(*RUN, "--max-steps", "5")
    folder = software(tmp_path)
    first = (folder / "training_ckpts" / "best.ckpt").read_bytes()
    done = ch(*RUN, "--max-steps", "9", "--seed", "1")
    assert "This directory already holds a run; saving this one as best-v1.ckpt" in done.stderr
    assert (folder / "training_ckpts" / "best.ckpt").read_bytes() == first
    names = sorted(p.name for p in (folder / "training_ckpts").glob("[!.]*"))
    assert names == ["best-v1.ckpt", "best.ckpt", "last-v1.ckpt", "last.ckpt"]
    assert json.loads((folder / "summary-v1.json").read_text())["progress"]["step"] == 9
    assert {"metrics.csv", "metrics-v1.csv", "curves-v1.svg"} <= {p.name for p in folder.iterdir()}


LONG = (*RUN, "--max-epochs", "4", "--checkpoint-every", "37", "--warmup-steps", "100")


def killed(tmp_path, environment, number, *, after, more=()):
    """Start a long run, send it signal `number` after it has saved `after` times."""
    words = command(tmp_path, *LONG, *more)
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    seen = set()
    while len(seen) < after and process.poll() is None:
        for file in (tmp_path / "out").glob("*/software/training_ckpts/last.ckpt"):
            seen.add(file.stat().st_mtime_ns)
        time.sleep(0.001)
    process.send_signal(number)
    _, log = process.communicate(timeout=60)
    return process.returncode, log.decode()


@pytest.fixture
def whole(tmp_path_factory, environment):
    """The weights that the long run ends with when nothing happens to it."""
    folder = tmp_path_factory.mktemp("whole")
    words = command(folder, *LONG)
    subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True)
    return weights(software(folder) / "training_ckpts" / "last.ckpt")


@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_ends_bit_for_bit_as_if_it_had_not_been(
    ch, tmp_path, environment, whole
):
    code, _ = killed(tmp_path, environment, signal.SIGKILL, after=5)
    assert code == -signal.SIGKILL
    done = ch(*LONG, "--resume")
    assert "Resumed from" in done.stderr
    folder = software(tmp_path)
    assert equal(weights(folder / "training_ckpts" / "last.ckpt"), whole)
    rows = (folder / "metrics.csv").read_text().splitlines()[1:]
    steps = [int(row.split(",")[1]) for row in rows if row.split(",")[3]]
    assert steps == sorted(set(steps))
    assert steps == list(range(50, 936 + 1, 50))


@pytest.mark.slow
def test_sigterm_saves_and_the_exit_code_says_so(ch, tmp_path, environment):
    code, log = killed(tmp_path, environment, signal.SIGTERM, after=1)
    assert code == 128 + signal.SIGTERM, log
    assert "SIGTERM: finishing this step and saving" in log
    assert "Traceback" not in log
    saved = torch.load(software(tmp_path) / "training_ckpts" / "last.ckpt", weights_only=True)
    assert saved["global_step"] >= 37


@pytest.mark.slow
def test_a_slurm_job_is_queued_again_and_goes_on_by_itself(ch_process, tmp_path, environment):
    tool = tmp_path / "scontrol"
    tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    tool.chmod(0o755)
    environment |= {"PATH": f"{tmp_path}:{environment['PATH']}", "SLURM_JOB_ID": "42"}
    code, log = killed(tmp_path, environment, signal.SIGUSR1, after=1, more=["--auto-requeue"])
    assert code == 128 + signal.SIGUSR1, log
    assert (tmp_path / "asked").read_text() == "requeue 42\n"
    environment["SLURM_RESTART_COUNT"] = "1"
    done = ch_process(*LONG, "--auto-requeue")
    assert "Resumed from" in done.stderr
    assert "Training is completed" in done.stderr


BAR = ("steps", "samples/s", "%", "loss")


def test_a_terminal_shows_a_bar_with_speed_and_a_log_does_not(ch, monkeypatch):
    said = ch(*RUN, "--max-steps", "3").stderr
    assert "Training is completed" in said
    assert "steps" not in said
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = ch(*RUN, "--max-steps", "3").stderr
    assert [part for part in BAR if part not in shown] == []


@pytest.mark.slow
def test_a_real_terminal_shows_the_bar(tmp_path, environment):
    words = command(tmp_path, *RUN, "--max-epochs", "3")
    screen, end = pty.openpty()
    environment |= {"TERM": "xterm", "COLUMNS": "160"}
    process = subprocess.Popen(
        words, env=environment, cwd=tmp_path, stderr=end, stdout=subprocess.DEVNULL
    )
    os.close(end)
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal says that the other side has left
        while piece := os.read(screen, 4096):
            shown += piece
    os.close(screen)
    assert process.wait(60) == 0
    text = shown.decode(errors="replace")
    assert [part for part in BAR if part not in text] == []


def test_a_loss_that_is_no_number_is_one_sentence_and_exit_code_1(ch):
    words = ("--learning-rate", "1e30", "--training-optimizer", "sgd")
    done = ch("train", "mlp", "jsc-sim", *words, check=1)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ch: the loss is nan at step")
    assert "Traceback" not in done.stderr


def test_a_trial_of_one_batch_leaves_nothing_behind(ch, tmp_path):
    done = ch(*RUN, "--debug", "--max-epochs", "3")
    assert "Enabled debug mode." in done.stderr
    assert "Training is completed" in done.stderr
    assert not list(software(tmp_path).glob("**/*.ckpt"))
    assert not list(software(tmp_path).glob("*.csv"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--max-steps", "0"), "--max-steps must be positive, or -1 for no limit; not 0"),
        (("--data-path", "."), "'jsc-sim' does not read a file; omit --data-path"),
        (("--resume",), "--resume: no training checkpoint"),
        (("--resume", "--load", "a.toml", "--load-type", "pl"), "--resume uses the weights of the run itself; omit --load"),  # noqa: E501
        (("--task", "lm"), "model 'jsc-tiny' supports cls, not lm"),
        (("--config", "a.toml"), "data set 'jsc-sim': option 'legacy_val' is 'yes', but it"),
    ],
)  # fmt: skip
def test_wrong_usage_is_exit_code_2(ch, tmp_path, arguments, sentence):
    (tmp_path / "a.toml").write_text('[dataset_args]\nlegacy_val = "yes"\n')
    done = ch(*RUN, *arguments, check=2)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_for_other_data_is_refused_as_wrong_usage(ch):
    done = ch("train", "vgg7", "jsc-sim", check=2)
    assert "model 'vgg7' takes images (image_size), but data set 'jsc-sim' has 16" in done.stderr


def test_accelerators_that_are_not_here_are_one_sentence(ch):
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("there is one here")
    for options, sentence in {
        "--accelerator gpu": "ch: accelerator 'gpu'",
        "--accelerator mps": "ch: accelerator 'mps'",
        "--gpu 4": "this machine has no GPU; for 4 processes on the CPU, add --accelerator cpu",
        "--nodes 2": (
            "--nodes 2 needs a process on every machine; start it there with torchrun or srun"
        ),
    }.items():
        done = ch(*RUN, *options.split(), check=1)
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_two_processes_train_one_network(ch_process, tmp_path):
    done = ch_process(
        *RUN, "--max-epochs", "2", "--accelerator", "cpu", "--gpu", "2", "--strategy", "ddp"
    )
    folder = software(tmp_path)
    assert done.stderr.count("Training is completed") == 1
    assert done.stdout.count("Effective") == 1
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["progress"]["step"] == 2 * 117  # half of 59,880 jets in batches of 256
    assert summary["metrics"]["val_acc_epoch"] > 0.4
    data, saved = jets_and_network()
    last = {"load_name": str(folder / "training_ckpts" / "last.ckpt"), "load_type": "pl"}
    arguments = lab(saved, data, **last)
    del arguments["weight_decay"]
    assert validate(**arguments)["val_loss_epoch"] == pytest.approx(
        summary["metrics"]["val_loss_epoch"], rel=1e-6
    )  # what was reported is what was saved
    best = folder / "training_ckpts" / "best.ckpt"
    two = ("--accelerator", "cpu", "--gpu", "2")
    ch_process("test", "jsc-tiny", "jsc-sim", "--load", best, "--load-type", "pl", *two)
    scores = json.loads((folder / "checkpoints" / "test_metrics.json").read_text())
    data.setup("test")
    assert scores["samples"] == len(data.test_dataset)
    assert scores["checkpoint"] == str(best)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="finds processes in /proc")
def test_a_process_of_two_that_is_killed_is_one_sentence(tmp_path, environment):
    """In the first run, and in one that resumes it."""
    words = command(tmp_path, *RUN, "--accelerator", "cpu", "--gpu", "2", "--project", "p")
    for resume in ((), ("--resume",)):
        with subprocess.Popen(
            [*words, "--max-epochs", "500", *resume], cwd=tmp_path, env=environment, text=True,
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        ) as first:  # fmt: skip
            assert any("Epoch" in line for line in first.stderr)
            children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
            (second,) = (n for n in children if b"chop" in Path(f"/proc/{n}/cmdline").read_bytes())
            os.kill(int(second), signal.SIGKILL)
            _, said = first.communicate(timeout=120)
        assert first.returncode == 1, said
        assert "ch: another process of this run has ended or cannot be reached; " in said
        assert "Traceback" not in said


@pytest.mark.slow
def test_two_machines_train_one_network(tmp_path, environment):
    """Two nodes of one process each, which find each other by the usual variables."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    words = command(tmp_path, *RUN, "--max-epochs", "1", "--accelerator", "cpu", "--nodes", "2")
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    places = [environment | address | {"NODE_RANK": str(rank)} for rank in range(2)]
    nodes = [subprocess.Popen(words, cwd=tmp_path, env=env, **pipes) for env in places]
    logs = [node.communicate(timeout=120)[1].decode() for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], logs
    assert "Training is completed" in logs[0]
    assert "Training is completed" not in logs[1]
    summary = json.loads((software(tmp_path) / "summary.json").read_text())
    assert summary["progress"]["step"] == 117


def test_a_run_with_odd_files_is_resumed_from_none_of_them(here, tmp_path):
    run = (*RUN, "--max-epochs", 1, "--project-dir", tmp_path / "out", "--no-progress")
    assert here(*run)[0] == 0
    folder = software(tmp_path)
    last, curves = folder / "training_ckpts" / "last.ckpt", folder / "metrics.csv"
    saved, rows = torch.load(last), curves.read_text()
    curves.write_text("time,loss\n1,2\n")
    code, _, said = here(*run, "--resume")
    assert code == 1
    assert said.splitlines()[-1].startswith(f"ch: {curves} does not hold the metrics of a run")
    assert curves.read_text() == "time,loss\n1,2\n"
    curves.write_text(rows)
    saved["mase"]["progress"]["step"] = "many"
    torch.save(saved, last)
    code, _, said = here(*run, "--resume")
    assert code == 1
    sentence = said.splitlines()[-1]
    assert sentence.startswith(f"ch: {last} cannot be resumed: mase.progress.step should be a val")
    assert sentence.endswith("; delete it to continue from best.ckpt")


def jets_and_network():
    data = MaseDataModule(name="jsc-sim", batch_size=512, num_workers=0)
    return data, get_model("jsc-tiny", task="cls", dataset_info=data.dataset_info, pretrained=False)


def lab(model, data, **changes):
    """The keyword arguments of the labs' notebooks."""
    return {
        "model": model,
        "model_info": get_model_info("jsc-tiny"),
        "data_module": data,
        "dataset_info": data.dataset_info,
        "task": "cls",
        "optimizer": "adam",
        "learning_rate": 1e-2,
        "weight_decay": 0,
        "plt_trainer_args": {
            "max_epochs": 1,
            "devices": 1,
            "accelerator": "cpu",
            "precision": "32",
        },
        "auto_requeue": False,
        **dict.fromkeys(("save_path", "visualizer", "load_name", "load_type")),
    } | changes


def test_the_functions_take_the_arguments_of_the_labs(tmp_path):
    data, model = jets_and_network()
    scheduler = {"t_max": 20, "eta_min": 1e-6}
    train(**lab(model, data, save_path=tmp_path / "ckpts", scheduler_args=scheduler))
    assert {p.name for p in (tmp_path / "ckpts").glob("*.ckpt")} == {"best.ckpt", "last.ckpt"}
    _, fresh = jets_and_network()
    loaded = {"load_name": str(tmp_path / "ckpts" / "best.ckpt"), "load_type": "pl"}
    metrics = score_on_test_split(**lab(fresh, data, **loaded))
    assert metrics.keys() == {"test_acc_epoch", "test_loss_epoch"}
    arguments = lab(fresh, data)
    del arguments["weight_decay"]
    assert validate(**arguments).keys() == {"val_acc_epoch", "val_loss_epoch"}
    assert all(map(torch.equal, fresh.state_dict().values(), model.state_dict().values()))


@pytest.mark.parametrize(
    ("schedule", "warned"),
    [({"eta_min": 0.1}, True), ({"eta_min": 0.1, "schedule": "constant"}, False), ({}, False)],
)
def test_a_lowest_rate_above_the_first_one_is_warned_of(caplog, schedule, warned):
    data, model = jets_and_network()
    arguments = lab(model, data, scheduler_args=schedule)
    arguments["plt_trainer_args"] |= {"fast_dev_run": True}
    with caplog.at_level("WARNING", "chop"):
        train(**arguments)
    sentence = (
        "eta_min = 0.1 is above learning_rate = 0.01, so the learning rate stays at 0.01; lower"
    )
    assert (sentence in caplog.text) == warned


def test_the_predecessors_checkpoint_scores_its_72_percent_on_the_genuine_rows(
    shared, ch, tmp_path
):
    """Standardised rows as the user's own npz file, classes in the order of that checkpoint."""
    genuine = np.load(shared / "jsc-openml-1k.npz")
    order = [list(genuine["classes"]).index(c) for c in "gqwzt"]
    x, y = genuine["X_std"], np.argsort(order)[genuine["y"]]
    np.savez(tmp_path / "genuine.npz", x_test=x, y_test=y, x_train=x, y_train=y)
    checkpoint = shared / "checkpoints" / "mase-jsc-tiny-best.ckpt"
    (tmp_path / "run.toml").write_text("[dataset_args]\nstandardize = false\n")
    ch(
        *("test", "jsc-tiny", "npz", "--config", tmp_path / "run.toml"),
        *("--data-path", tmp_path / "genuine.npz", "--load", checkpoint, "--load-type", "pl"),
    )
    scores = json.loads((software(tmp_path) / "checkpoints" / "test_metrics.json").read_text())
    assert scores["samples"] == 1000
    assert scores["metrics"]["test_acc_epoch"] == pytest.approx(0.723)
