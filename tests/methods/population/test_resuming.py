"""A population that was killed goes on from its last epoch, and ends as if it had not been."""

import contextlib
import subprocess
import sys
import textwrap

import pytest
import torch

from chop.methods.population import train as train_module
from chop.methods.population import train_population


class Killed(Exception):
    pass


def killer(epochs):
    """A function for `on_epoch` that raises `Killed` when it is called for the last of them."""
    left = iter(range(epochs - 1))

    def on_epoch(reports):
        if next(left, None) is None:
            raise Killed

    return on_epoch


def chosen(family):
    """Candidates that end after one, two, and six epochs, and in the middle of one."""
    return [
        family.options(max_epochs=6, optimizer="sgd", seed=1),
        family.options(max_epochs=1, seed=2),
        family.options(max_epochs=6, max_steps=8, weight_decay=0.1, optimizer="adamw"),
        family.options(max_epochs=6, early_stopping=2, learning_rate=0.05, seed=3),
    ]


def models(family):
    configs = [None, family.integer(6, 3), family.integer(5, 4), family.of_format("scale_integer")]
    return [family.mlp([3 + i, 4], seed=i, config=config) for i, config in enumerate(configs)]


def train(family, members, **others):
    return train_population(members, family.splits, chosen(family), batch_size=32, **others)


def facts(outcome):
    return {key: value for key, value in vars(outcome).items() if key != "seconds"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("killed_at", [1, 2, 3, 4])
def test_resumed_is_uninterrupted(family, tmp_path, killed_at):
    whole = models(family)
    expected = train(family, whole)
    file = tmp_path / "population.pt"
    with pytest.raises(Killed):
        train(family, models(family), on_epoch=killer(killed_at), snapshot=file)
    members = models(family)
    if killed_at > 1:
        for parameter in (p for member in members for p in member.parameters()):
            parameter.data.add_(1.0)  # what they were does not matter
    assert file.exists() == (killed_at > 1)  # else nothing had ended yet
    resumed = train(family, members, snapshot=file, resume=True)
    for own, other, outcome, wanted in zip(members, whole, resumed, expected, strict=True):
        assert family.distance(own, other) < 1e-10
        assert facts(outcome) == pytest.approx(facts(wanted), abs=1e-10)
    again = models(family)
    assert facts(train(family, again, snapshot=file, resume=True)[0]) == facts(resumed[0])
    assert family.distance(again[0], members[0]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [2, 4])
def test_the_best_epoch_survives_as_well(family, tmp_path, killed_at):
    whole = models(family)
    train(family, whole, keep_best=True)
    file = tmp_path / "population.pt"
    with pytest.raises(Killed):
        train(family, models(family), on_epoch=killer(killed_at), snapshot=file, keep_best=True)
    members = models(family)
    train(family, members, snapshot=file, resume=True, keep_best=True)
    for own, other in zip(members, whole, strict=True):
        assert family.distance(own, other) < 1e-10
    with pytest.raises(ValueError, match="keep_best = True, not False; use the same value"):
        train(family, models(family), snapshot=file, resume=True)


SCRIPT = """
    import os, signal, sys
    from pathlib import Path
    import torch
    from torch import nn
    from chop.dataset import TensorSplit
    from chop.training.options import TrainOptions
    from chop.methods.population import train_population

    def run(folder, kill):
        torch.manual_seed(0)
        x = torch.randn(120, 6)
        models = [nn.Sequential(nn.Linear(6, w), nn.ReLU(), nn.Linear(w, 4)) for w in (3, 5)]
        split = TensorSplit(x, x[:, :4].argmax(1))
        options = TrainOptions(max_epochs=4, learning_rate=0.01)
        def on_epoch(reports):
            if kill and reports[0].epochs == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        train_population(models, (split, split), options, batch_size=32, on_epoch=on_epoch,
                         snapshot=Path(folder) / "p.pt", resume=True)
        return models

    if __name__ == "__main__":
        models = run(sys.argv[1], sys.argv[2] == "kill")
        torch.save([m.state_dict() for m in models], Path(sys.argv[1]) / "end.pt")
"""


@pytest.mark.slow
def test_kill_9_loses_at_most_an_epoch(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")

    def run(folder, how):
        (tmp_path / folder).mkdir(exist_ok=True)
        command = [sys.executable, str(script), str(tmp_path / folder), how]
        return subprocess.run(command, check=False).returncode

    assert run("a", "kill") == -9
    saved = torch.load(tmp_path / "a" / "p.pt", weights_only=True)
    assert saved["progress"]["epoch"] == 2
    assert run("a", "go on") == run("b", "go on") == 0
    resumed, whole = (torch.load(tmp_path / f / "end.pt", weights_only=True) for f in "ab")
    for one, other in zip(resumed, whole, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.slow
def test_another_population_is_not_resumed(family, tmp_path):
    file = tmp_path / "population.pt"
    train(family, models(family), snapshot=file)

    def resumed(members, batch_size=32):
        options = chosen(family)[: len(members)]
        train_population(
            members, family.splits, options, batch_size=batch_size, snapshot=file, resume=True
        )

    with pytest.raises(ValueError, match="number of candidates = 4, not 2"):
        resumed(models(family)[:2])
    with pytest.raises(ValueError, match="batch_size = 32, not 16"):
        resumed(models(family), batch_size=16)
    others = models(family)
    others[1] = family.mlp([9, 4], config=family.integer(6, 3))
    with pytest.raises(ValueError, match="candidate 1 differs from the saved one"):
        resumed(others)
    others = models(family)
    others[1] = family.mlp([4, 4], config=family.integer(6, 2))
    with pytest.raises(ValueError, match="candidate 1 differs from the saved one"):
        resumed(others)


def test_a_file_that_is_no_snapshot_is_refused(family, tmp_path):
    file = tmp_path / "population.pt"
    torch.save({"state_dict": {}}, file)
    with pytest.raises(ValueError, match="not a snapshot of a population; delete it"):
        train(family, models(family), snapshot=file, resume=True)
    file.write_bytes(b"garbage")
    with pytest.raises(ValueError, match="damaged"):
        train(family, models(family), snapshot=file, resume=True)


@pytest.mark.slow
def test_who_goes_on_has_the_threads_of_those_who_began(family, tmp_path, monkeypatch):
    """Few candidates are left, whose sums shall be those that they were."""
    seen = []

    @contextlib.contextmanager
    def noting(work, device):
        seen.append(work)
        yield

    monkeypatch.setattr(train_module, "threads_for", noting)
    file = tmp_path / "population.pt"
    with pytest.raises(Killed):
        train(family, models(family), on_epoch=killer(2), snapshot=file)
    train(family, models(family), snapshot=file, resume=True)
    assert len(seen) == 2
    assert seen[0] == seen[1]
