"""What a population refuses, tells and stops."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.methods.population import Unfit, reason_against, train_population
from chop.numerics import FORMATS
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from chop.passes.graph.transforms.quantize.quantized_modules.base import variant
from chop.passes.graph.transforms.quantize.quantized_modules.linear import QuantLinear
from chop.training.optimisers import OPTIMIZERS


def train(family, models, chosen=None, **others):
    settings = {"batch_size": 32} | others
    return train_population(models, family.splits, chosen or family.options(), **settings)


class Twice(nn.Module):
    """One layer, called twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, width), nn.Linear(width, width)
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        return self.last(self.two(torch.relu(self.two(self.one(x)))))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.last(self.two(self.one(x)))


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class InPlace(nn.Module):
    """Activations in place, whose inputs are read again: as they are by then."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, width), nn.Linear(width, width)
        self.last = nn.Linear(width, 4)
        self.same, self.none = nn.Identity(), nn.Dropout(0.0)

    def forward(self, x):
        first = self.one(x)
        again = self.same(first)
        again.add_(self.two(torch.tanh(first)))
        last = F.relu_(self.none(first))
        return self.last(last + again)


class Viewed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv1d(2, 3, 1), nn.Linear(9, 4)

    def forward(self, x):
        x = self.conv(x)
        row = torch.flatten(x, 1)
        x.relu_()
        return self.last(row)


class Halves(nn.ReLU):
    """Calls itself a ReLU."""

    def forward(self, input):
        return input.flip(-1)


def halved():
    return MaseGraph(linear(Halves()), custom_ops={"modules": {Halves: {}}}).model


def linear(*layers):
    return nn.Sequential(nn.Linear(6, 4), *layers)


class TwoInputs(nn.Module):
    def forward(self, x, y):
        return x + y


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)

    def forward(self, x):
        return self.last(x), x


def at_random():
    config = {"name": "binary"}
    for operand in ("data_in", "weight", "bias"):
        keys = {"width": 1, "stochastic": True, "bipolar": True}
        config |= {f"{operand}_{key}": value for key, value in keys.items()}
    return nn.Sequential(variant(QuantLinear, FORMATS["binary"])(6, 4, config=config))


def with_scales():
    config = {"name": "affine", "data_in_width": 8, "data_in_scale": 0.1, "weight_width": 8}
    return nn.Sequential(variant(QuantLinear, FORMATS["affine"])(6, 4, config=config))


TWICE, RANDOM = linear(), at_random()
REFUSED = {
    "no network": ([], "at least one"),
    "dropout": ([linear(nn.Dropout(0.5))], "1 is dropout"),
    "softmax": ([linear(nn.Softmax(1))], "1 is a Softmax"),
    "layer norm": ([linear(nn.LayerNorm(4))], "1 is a LayerNorm"),
    "other depth": ([linear(), linear(nn.ReLU())], "candidate 1 has 2 layers"),
    "other activation": ([linear(nn.Tanh()), linear(nn.ReLU())], "1 is pointwise"),
    "other slope": ([linear(nn.LeakyReLU(s)) for s in (0.1, 0.2)], "negative_slope=0.2"),
    "other bias": ([nn.Linear(6, 4), nn.Linear(6, 4, bias=False)], "bias=False"),
    "other classes": ([nn.Linear(6, 4), nn.Linear(6, 3)], "numbers of classes: [3, 4]"),
    "other type": ([nn.Linear(6, 4), nn.Linear(6, 4).double()], "one floating-point type"),
    "tied": ([Tied()], "shares a parameter"),
    "twice the same": ([TWICE, TWICE], "0 of candidate 1 shares a parameter"),
    "a view that changes": ([Viewed()], "relu_ changes in place a value that flatten is a view of"),
    "an own forward": ([halved()], "1 is a Halves"),
    "random rounding": ([RANDOM], "0 rounds data_in stochastically"),
    "scales of each layer": ([with_scales()], "0 rounds data_in with affine, which populations"),
    "two inputs": ([TwoInputs()], "several inputs"),
    "two outputs": ([TwoOutputs()], "does not return the output of its last layer"),
    "branches": ([nn.Sequential(Branching(), nn.Linear(6, 4))], "cannot trace"),
    "groups": ([nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.Flatten())], "2 groups"),
    "maps": ([nn.Conv2d(4, 4, 1)], "returns maps"),
    "nothing to learn": ([nn.ReLU()], "one floating-point type"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_batched_is_refused_with_a_reason(case):
    models, reason = REFUSED[case]
    assert reason in (reason_against(models) or "nothing")


def test_networks_with_hooks_are_refused():
    model = linear()
    model[0].register_forward_hook(lambda *_: None)
    assert "hooks" in reason_against([model])


def test_a_refusal_says_to_train_one_by_one(family):
    with pytest.raises(Unfit, match=r"Softmax.*one by one"):
        train(family, [linear(nn.Softmax(1))])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"precision": "bf16"}, "not bf16"),
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches"),
        ({"optimizer": "lion"}, "do not support the optimizer lion"),
    ],
)
def test_options_that_cannot_be_batched_are_refused(family, changes, reason, monkeypatch):
    monkeypatch.setitem(OPTIMIZERS._items, "lion", torch.optim.RMSprop)  # one of the user's
    chosen = family.options(**changes)
    assert reason in reason_against([linear()], chosen)
    with pytest.raises(Unfit, match=reason):
        train(family, [linear()], chosen)


def test_wrong_numbers_of_options_and_seeds_are_refused(family):
    with pytest.raises(ValueError, match=r"expected 2 options \(one per model\), got 1"):
        train(family, [linear(), linear()], [family.options()])
    with pytest.raises(ValueError, match=r"expected 2 seeds \(one per model\), got 3"):
        train(family, [linear(), linear()], seeds=[1, 2, 3])


def test_a_network_that_does_not_fit_the_data_is_not_hidden_by_padding(family):
    with pytest.raises(ValueError, match="cannot process a batch"):
        train(family, [linear(), nn.Sequential(nn.Linear(5, 4))])


class Asks(nn.Module):
    """Computes something else while it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)

    def forward(self, x):
        return self.last(x) if isinstance(x, torch.Tensor) else torch.relu(self.last(x))


class Renamed(nn.Module):
    """Writes into a tensor, and reads it under another name."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.one, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        first = again = self.one(x)
        again += x
        return self.last(first)


def test_a_network_that_its_graph_does_not_describe_is_refused(family):
    with pytest.raises(Unfit, match="computes something else than the model"):
        train(family, [Asks()])


def test_early_stopping_needs_validation(family):
    chosen = family.options(early_stopping=1)
    with pytest.raises(ValueError, match="validation split"):
        train_population([linear()], (family.splits[0], None), chosen, batch_size=32)


@pytest.mark.parametrize("make", [Twice, InPlace, Renamed])
def test_layers_called_twice_and_values_changed_in_place_learn_as_alone(family, make):
    models = [make(width) for width in (3, 5)]
    family.assert_as_alone(models, family.options(), family.splits)


def test_graphs_with_quantized_functions_are_members(family):
    def graph(width: int) -> nn.Module:
        torch.manual_seed(width)
        mase, config = MaseGraph(Twice(width)), family.integer(6, width)
        init_metadata_analysis_pass(mase)
        add_common_metadata_analysis_pass(mase, {"dummy_in": {"x": torch.randn(2, 6)}})
        quantize_transform_pass(mase, {"by": "type", "default": {"config": config}})
        return mase.model

    models = [graph(width) for width in (3, 5)]
    assert reason_against(models) is None
    family.assert_as_alone(models, family.options(), family.splits)


def test_a_candidate_that_diverges_ends_alone(family):
    models = [family.mlp([4], norm=False, seed=seed) for seed in (1, 2)]
    with torch.no_grad():
        models[0][0].weight[0, 0] = math.inf
    outcomes = train(family, models)
    assert [outcome.stopped for outcome in outcomes] == ["diverged", "budget"]
    assert outcomes[0].epochs == 1
    assert math.isnan(outcomes[0].loss)
    assert math.isfinite(outcomes[1].loss)


def test_the_caller_hears_of_each_epoch_and_may_end_candidates(family):
    heard = []
    models = [family.mlp([width], seed=width) for width in (3, 5, 8)]
    apart = family.copy(models[1])
    calls = {"on_epoch": heard.append, "should_stop": lambda report: report.candidate == 1}
    outcomes = train(family, models, family.options(max_epochs=3), **calls)
    numbers = [[report.candidate for report in reports] for reports in heard]
    assert numbers == [[0, 1, 2], [0, 2], [0, 2]]
    assert [outcome.stopped for outcome in outcomes] == ["budget", "asked", "budget"]
    assert [outcome.epochs for outcome in outcomes] == [3, 1, 3]
    # the schedule is that of three epochs, of which it had one
    chosen = family.options(max_epochs=3, max_steps=outcomes[1].steps)
    family.alone(apart, family.splits, chosen)
    assert family.distance(models[1], apart) < 1e-8


def test_time_ends_them_all_with_scores(family):
    models = [family.mlp([width]) for width in (3, 5)]
    chosen = family.options(max_epochs=10**6)
    outcomes = train(family, models, chosen, max_seconds=0.2)
    assert {outcome.stopped for outcome in outcomes} == {"budget"}
    assert all(outcome.accuracy is not None and outcome.steps > 0 for outcome in outcomes)
    assert outcomes[0].seconds < 10


def test_no_epochs_leave_the_models_as_they_were(family):
    model = family.mlp([3])
    before = family.copy(model).double()
    (outcome,) = train(family, [model], family.options(max_epochs=0))
    fitted = family.alone(family.copy(before), family.splits, family.options(max_epochs=0))
    assert outcome.steps == 0
    assert outcome.loss == pytest.approx(fitted.validation.loss)
    assert family.distance(model, before) == 0
