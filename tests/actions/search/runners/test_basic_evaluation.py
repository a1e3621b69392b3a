"""`basic_evaluation`: exactly the samples asked for, counted anew for every trial."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from chop.actions.search.metrics.base import RUNNERS, check_options
from chop.dataset.tensors import TensorSplit
from chop.training.evaluate import evaluate
from chop.training.steps import Mixed

from .conftest import graph_of, make_scene, make_trial, with_splits

Evaluation = RUNNERS["basic_evaluation"]


def expected(model, split):
    """What the loop would say about `model`."""
    return evaluate(model.eval(), [split[:]], mixed=Mixed("32", torch.device("cpu")))


@pytest.mark.parametrize("number", [1, 63, 1000, 10**9])
@pytest.mark.parametrize("batch_size", [None, 100])
def test_exactly_the_first_samples_count(jets, trial, number, batch_size):
    found = Evaluation(jets, num_samples=number, batch_size=batch_size)(trial)
    split = jets.data_module.val_dataset
    score = expected(trial.model, TensorSplit(split.x[:number], split.y[:number]))
    assert found["accuracy"] == score.accuracy
    assert found["loss"] == pytest.approx(score.loss, rel=1e-6)  # sums in another order


@pytest.mark.parametrize("key", ["data_loader", "dataloader"])
def test_the_train_split_is_not_shuffled(jets, trial, key):
    found = Evaluation(jets, num_samples=100, **{key: "train_dataloader"})(trial)
    split = jets.data_module.train_dataset
    score = expected(trial.model, TensorSplit(split.x[:100], split.y[:100]))
    assert found["accuracy"] == score.accuracy


def test_classes_have_their_own_accuracies_and_the_same_weight_in_macro(jets, trial):
    runner = Evaluation(jets, num_samples=500, per_class=True, average="macro")
    found = runner(trial)
    split = jets.data_module.val_dataset
    score = expected(trial.model, TensorSplit(split.x[:500], split.y[:500]))
    names = [f"accuracy_{name}" for name in jets.dataset_info.class_names]
    assert [found[name] for name in names] == list(score.class_accuracy)
    assert found["accuracy"] == pytest.approx(sum(score.class_accuracy) / 5)
    assert tuple(runner.metrics) == tuple(found) == ("accuracy", "loss", *names)
    assert all(runner.metrics[name] == "maximize" for name in names)
    assert "accuracy_g" not in Evaluation.metrics


def test_classes_that_no_sample_has_give_no_metric(jets, trial):
    runner = Evaluation(jets, num_samples=1, per_class=True)
    assert len(runner.metrics) == len(runner(trial)) == 3


def test_a_model_that_works_in_place_finds_the_same_samples_again(jets):
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(16, 5))
    trial = make_trial(graph_of(model, torch.ones(2, 16)))
    runner = Evaluation(jets, num_samples=64)
    assert runner(trial) == runner(trial) == Evaluation(jets, num_samples=64)(trial)


class Slow(Dataset):
    """Samples that do not lie in memory."""

    def __init__(self, split):
        self.split, self.read = split, []

    def __len__(self):
        return len(self.split)

    def __getitem__(self, index):
        self.read.append(index)
        return self.split[index]


def test_samples_behind_a_loader_are_read_once_and_scored_as_those_in_memory(jets, trial):
    wanted = Evaluation(jets, num_samples=70)(trial)
    split = Slow(jets.data_module.val_dataset)
    runner = Evaluation(with_splits(jets, val_dataset=split), num_samples=70)
    assert runner(trial) == runner(trial) == pytest.approx(wanted)
    assert split.read == list(range(70))


def test_images_are_scored_too():
    context = make_scene("toy", "toy_tiny")
    found = Evaluation(context, num_samples=128)(make_trial(context.graph))
    split = context.data_module.val_dataset
    score = expected(context.model, TensorSplit(split.x[:128], split.y[:128]))
    assert found["accuracy"] == score.accuracy


def test_new_weights_are_refused_unless_allowed(jets, trial):
    trial.fresh = ("seq_blocks_2",)
    with pytest.raises(ValueError, match=r"seq_blocks_2 .*sw_runner\.basic_train"):
        Evaluation(jets, num_samples=10)(trial)
    assert Evaluation(jets, num_samples=10, allow_untrained=True)(trial)


def test_a_missing_split_is_refused_at_once(jets):
    with pytest.raises(ValueError, match=r"test_dataloader, which .* the end; .* val_dataloader"):
        Evaluation(
            with_splits(jets, test_dataset=None), num_samples=9, data_loader="test_dataloader"
        )


def test_two_names_of_the_loader_must_agree(jets):
    with pytest.raises(ValueError, match="the same option"):
        Evaluation(jets, num_samples=1, data_loader="val_dataloader", dataloader="test_dataloader")


def test_labels_that_are_not_classes_are_refused(jets, trial):
    split = TensorSplit(jets.data_module.val_dataset.x[:9], torch.rand(9))
    with pytest.raises(ValueError, match="must be class indices"):
        Evaluation(with_splits(jets, val_dataset=split), num_samples=9)(trial)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs the key 'num_samples'"),
        ({"num_samples": 0}, "num_samples: .*greater than or equal to 1"),
        ({"num_samples": 5, "average": "weighted"}, "average: .*'micro' or 'macro'"),
        ({"num_samples": 5, "data_loader": "valid"}, "data_loader: .*'val_dataloader'"),
    ],
)
def test_wrong_options_are_refused_with_their_path(given, said):
    with pytest.raises(ValueError, match=f"sw_runner.basic_evaluation.*{said}"):
        check_options(Evaluation, given, "sw_runner.basic_evaluation")


def test_a_candidate_with_too_few_classes_is_refused(jets):
    trial = make_trial(graph_of(nn.Linear(16, 3), torch.ones(2, 16)))
    with pytest.raises(ValueError, match="has 3 outputs, but there are samples of class 4"):
        Evaluation(jets, num_samples=100)(trial)


def test_metrics_of_classes_are_expected_before_there_are_data():
    assert Evaluation.direction_of("accuracy_top", {"per_class": True}) == "maximize"
    assert Evaluation.direction_of("accuracy_top", {}) is None
    assert Evaluation.direction_of("loss", {}) == "minimize"


def test_shares_of_samples_say_of_how_many(jets, trial):
    assert Evaluation(jets, num_samples=500).samples_by_metric() == {"accuracy": 500}
    every = len(jets.data_module.val_dataset)
    assert Evaluation(jets, num_samples=10**9).samples_by_metric() == {"accuracy": every}
    by_class = Evaluation(jets, num_samples=500, per_class=True, average="macro")
    samples = by_class.samples_by_metric()
    assert samples.keys() == {f"accuracy_{name}" for name in jets.dataset_info.class_names}
    assert sum(samples.values()) == 500


@pytest.mark.parametrize(
    ("runner", "options"),
    [("basic_evaluation", {"num_samples": 500}), ("basic_train", {"max_epochs": 1})],
)
def test_metrics_of_a_regression_are_no_shares_of_samples(jets, runner, options):
    context = dataclasses.replace(jets, task="reg")
    assert RUNNERS[runner](context, **options).samples_by_metric() == {}
