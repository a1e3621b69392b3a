"""A run that was cut continues with the same bits."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from chop.training.interruption import Interrupted
from chop.training.learned import train_front
from chop.training.learned.archive import LearnedDesign
from chop.training.learned.snapshots import Snapshots

SCRIPT = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import torch
from conftest import make_network, make_options, rows
from chop.training.learned import train_front

network, options = make_network(), make_options(retrain=20)

def kill(checkpoint):
    if checkpoint.step == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

front = train_front(
    network, (rows(2000, 1), rows(500, 2)), options, folder=sys.argv[2], on_checkpoint=kill,
    accelerator="cpu",
)
torch.save([(d.facts, d.state) for d in front.designs], sys.argv[4])
"""


def assert_same(ours, theirs):
    assert [facts for facts, _ in ours] == [facts for facts, _ in theirs]
    for (_, one), (_, other) in zip(ours, theirs, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_a_killed_process_continues_with_the_same_bits(tmp_path):
    def run(folder, kill_at):
        here = Path(__file__).parent
        arguments = [
            str(here),
            str(tmp_path / folder),
            str(kill_at),
            str(tmp_path / f"{folder}.pt"),
        ]
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, *arguments], cwd=here.parents[2], env=os.environ
        ).returncode

    assert run("whole", -1) == 0
    assert run("cut", 40) == -signal.SIGKILL
    assert run("cut", -1) == 0
    ours, theirs = (torch.load(tmp_path / f"{name}.pt") for name in ("cut", "whole"))
    assert_same(ours, theirs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stop_at", [7, 22, 28])
@pytest.mark.parametrize("way", ["population", "target"])
def test_a_run_that_a_signal_stops_continues_with_the_same_bits(
    network, splits, options, tmp_path, way, stop_at
):
    extra = {"way": way, "retrain": 8, "steps": 24, "checkpoints": 3}
    extra |= {"target": "ebops <= 4000"} if way == "target" else {}
    taken = 0

    def interrupted():
        nonlocal taken
        taken += 1
        return signal.SIGTERM if taken == stop_at else None

    whole = train_front(network, splits, options(**extra))
    with pytest.raises(Interrupted):
        train_front(network, splits, options(**extra), folder=tmp_path, interrupted=interrupted)
    front = train_front(network, splits, options(**extra), folder=tmp_path)
    assert_same(*([(d.facts, d.state) for d in f.designs] for f in (whole, front)))


def test_a_snapshot_of_another_run_is_refused(network, splits, options, tmp_path):
    train_front(network, splits, options(steps=10, checkpoints=1), folder=tmp_path)
    with pytest.raises(ValueError, match="another network, data set or other options"):
        train_front(network, splits, options(steps=11, checkpoints=1), folder=tmp_path)


def test_a_complete_run_is_not_run_again(network, splits, options, tmp_path):
    front = train_front(network, splits, options(steps=10, checkpoints=1), folder=tmp_path)
    seen = []
    chosen = options(steps=10, checkpoints=1)
    again = train_front(network, splits, chosen, folder=tmp_path, on_checkpoint=seen.append)
    assert seen == []
    assert again.designs == front.designs


def test_a_snapshot_of_a_network_with_another_activation_is_refused(
    network, splits, options, tmp_path
):
    short = options(steps=8, checkpoints=1)
    train_front(network, splits, short, folder=tmp_path)
    network[1] = nn.Tanh()  # has no tensors either
    with pytest.raises(ValueError, match="belongs to a run with another network"):
        train_front(network, splits, short, folder=tmp_path)


def test_designs_of_an_earlier_run_do_not_take_the_place_of_new_ones(tmp_path):
    def design(value):
        return LearnedDesign(0, 5, 0, 0.0, 1.0, {"r2": 0.5}, {"weight": torch.tensor(value)})

    snapshots = Snapshots(tmp_path)
    snapshots.write("one", {}, [design(1.0)])
    snapshots.file.unlink()  # as a process that was killed before it wrote its state
    assert snapshots.read("other") is None
    snapshots.write("other", {}, [design(2.0)])
    _, (read,) = snapshots.read("other")
    assert read.state["weight"] == 2.0
