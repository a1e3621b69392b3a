"""`basic_train`: our loop, without files and words, on a budget."""

import logging

import pytest
import torch
from torch import nn

from chop.actions.search.metrics.base import RUNNERS, Stopped, check_options
from chop.actions.search.metrics.rungs import RungScore
from chop.training.evaluate import evaluate
from chop.training.loop import Training
from chop.training.steps import Mixed

from .conftest import graph_of, make_trial, with_splits
from .test_contract import quantized

Train = RUNNERS["basic_train"]


@pytest.fixture
def steps(monkeypatch):
    """The number of optimiser steps of every run, in order."""
    taken, fit = [], Training.fit

    def counting(self):
        fitted = fit(self)
        taken.append(fitted.steps)
        return fitted

    monkeypatch.setattr(Training, "fit", counting)
    return taken


def fresh(jets, width=32, **facts):
    torch.manual_seed(3)
    model = nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 5))
    return make_trial(graph_of(model, torch.randn(4, 16)), fresh=("_1", "_3"), **facts)


@pytest.mark.slow
def test_a_new_network_learns_and_keeps_what_it_learnt(jets):
    trial = fresh(jets)
    found = Train(jets, num_samples=20_000, learning_rate=1e-2)(trial)
    assert found["accuracy"] > 0.6
    again = RUNNERS["basic_evaluation"](jets, num_samples=10**9, allow_untrained=True)(trial)
    assert again == pytest.approx(found)


@pytest.mark.slow
def test_a_quantized_candidate_is_trained_in_its_formats(jets):
    graph = quantized(jets.graph)
    before = RUNNERS["basic_evaluation"](jets, num_samples=10**9)(make_trial(graph))
    after = Train(jets, max_steps=100, learning_rate=1e-2)(make_trial(graph))
    assert after["loss"] < before["loss"]
    assert type(graph.model.get_submodule("seq_blocks.2")).__name__ == "LinearInteger"


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({"max_steps": 7}, 7),
        ({"num_samples": 640}, 10),
        ({"num_samples": 641}, 11),
        ({"num_samples": 640, "batch_size": 32}, 20),
        ({"num_samples": 640, "gradient_accumulation_steps": 2}, 5),
        ({"max_steps": 9, "num_samples": 640, "max_epochs": 3}, 9),
        ({"max_epochs": 2, "batch_size": 20_000}, None),
    ],
)
def test_a_budget_is_kept_to_the_step(jets, steps, budget, expected):
    Train(jets, num_val_samples=64, **budget)(fresh(jets))
    per_epoch = -(-len(jets.data_module.train_dataset) // 20_000)
    assert steps == [expected or 2 * per_epoch]


def test_a_budget_of_time_ends_within_an_epoch(jets, steps):
    runner = Train(jets, max_seconds=1e-6, batch_size=64)
    runner(fresh(jets))
    assert steps == [1]


def test_the_seed_of_the_trial_decides(jets):
    first, same, other = (Train(jets, max_steps=5)(fresh(jets, seed=seed)) for seed in (1, 1, 2))
    assert first == same != other


def test_every_epoch_is_reported(jets):
    told = []
    trial = fresh(jets, report=lambda epoch, metrics: told.append((epoch, metrics)))
    found = Train(jets, max_epochs=2, batch_size=4096)(trial)
    assert [epoch for epoch, _ in told] == [1, 2]
    assert told[-1][1] == found


def test_a_trial_that_is_stopped_leaves_cleanly(jets, steps):
    def enough(epoch, metrics):
        raise Stopped

    trial = fresh(jets, report=enough)
    trial.model.eval()
    random, threads = torch.get_rng_state(), torch.get_num_threads()
    with pytest.raises(Stopped):
        Train(jets, max_epochs=3, batch_size=4096)(trial)
    assert steps == []
    assert not any(module.training for module in trial.model.modules())
    assert torch.equal(random, torch.get_rng_state())
    assert threads == torch.get_num_threads()


def test_only_whole_epochs_are_rungs(jets):
    marked = []

    def mark(rung, metrics):
        marked.append(rung)
        return RungScore(metrics), [RungScore({"loss": -1.0})] * 9

    trial = fresh(jets, mark=mark)
    Train(jets, max_seconds=1e-6, rungs=[1])(trial)
    assert marked == []
    with pytest.raises(Stopped, match="left at the rung after epoch 1"):
        Train(jets, max_epochs=2, batch_size=4096, rungs=[1])(trial)
    assert marked == [1]


def test_without_a_search_nobody_leaves_at_a_rung(jets):
    found = Train(jets, max_epochs=2, batch_size=8192, rungs=[1])(fresh(jets))
    assert found == Train(jets, max_epochs=2, batch_size=8192)(fresh(jets))


def test_it_says_and_writes_nothing(jets, caplog, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trial = fresh(jets)
    with caplog.at_level(logging.DEBUG, logger="chop"):
        Train(jets, max_steps=3, num_val_samples=64)(trial)
    assert not caplog.records
    assert not any(capsys.readouterr())
    assert not list(tmp_path.iterdir())


def test_only_the_first_samples_of_the_validation_split_are_scored(jets):
    trial = fresh(jets)
    found = Train(jets, max_steps=3, num_val_samples=100)(trial)
    split = jets.data_module.val_dataset
    score = evaluate(trial.model, [split[:100]], mixed=Mixed("32", torch.device("cpu")))
    assert found["accuracy"] == score.accuracy


def test_a_distilled_candidate_comes_nearer_to_its_parent(jets):
    def distance(distill):
        trial = fresh(jets)
        Train(jets, max_steps=60, learning_rate=1e-2, distill=distill)(trial)
        return RUNNERS["sqnr"](jets)(trial)["sqnr"]

    before = {k: v.clone() for k, v in jets.model.state_dict().items()}
    assert distance(1.0) > distance(0.0)
    assert all(torch.equal(v, before[k]) for k, v in jets.model.state_dict().items())


@pytest.mark.parametrize("name", ["linear", "cosine", "constant", "constant_with_warmup"])
@pytest.mark.parametrize("key", ["lr_scheduler", "schedule"])
def test_schedules_go_by_their_usual_names(jets, name, key):
    runner = Train(jets, max_steps=2, num_val_samples=8, **{key: name})
    assert runner(fresh(jets))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "has no budget"),
        ({"num_samples": 0}, "num_samples is at least 1, or -1"),
        (
            {"max_seconds": 1.0, "lr_scheduler": "cosine"},
            "cosine schedule needs its number of steps",
        ),
        ({"max_steps": 1, "lr_scheduler": "cosine", "schedule": "linear"}, "are the same option"),
    ],
)
def test_options_that_do_not_go_together_are_refused_at_once(jets, given, said):
    with pytest.raises(ValueError, match=said):
        Train(jets, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"optimizer": "lion"}, r"optimizer: .*'adam', 'sgd' or 'adamw'"),
        ({"learning_rate": 0}, r"learning_rate: .*greater than 0"),
        ({"distill": 1.5}, r"distill: .*less than or equal to 1"),
        ({"num_samples": -2}, r"num_samples: .*-1"),
        ({"lr_scheduler": "polynomial"}, r"lr_scheduler: .*'linear'"),
        ({"epochs": 2}, r"no key 'epochs'"),
    ],
)
def test_wrong_options_are_refused_with_their_path(given, said):
    with pytest.raises(ValueError, match=f"sw_runner.basic_train.*{said}"):
        check_options(Train, given, "sw_runner.basic_train")


def test_a_data_set_without_validation_is_refused_at_once(jets):
    with pytest.raises(ValueError, match="reads val_dataloader, which this data set lacks"):
        Train(with_splits(jets, val_dataset=None), max_steps=1)
