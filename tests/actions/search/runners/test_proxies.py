"""Zero-cost proxies: the published formulas, by hand on small networks."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.actions.search.metrics.base import RUNNERS
from chop.dataset.tensors import TensorSplit

from .conftest import graph_of, make_trial, with_splits

PROXIES = ("grad_norm", "snip", "synflow", "naswot", "jacob_cov")


def mlp(width=8, *, seed=0, features=16, classes=5):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, classes))


def score(context, name, model, **options):
    trial = make_trial(graph_of(model, torch.ones(2, 16)))
    return RUNNERS[name](context, **options)(trial)[name]


def batch_of(context, name, **options):
    return RUNNERS[name](context, **options)._batch


def test_grad_norm_and_snip_by_hand(jets):
    model = mlp()
    x, y = batch_of(jets, "snip", batch_size=32)
    F.cross_entropy(model(x), y).backward()
    weights = [model[0].weight, model[2].weight]
    norms = sum(w.grad.norm().item() for w in weights)
    saliency = sum((w * w.grad).abs().sum().item() for w in weights)
    assert score(jets, "grad_norm", mlp(), batch_size=32) == pytest.approx(norms, rel=1e-5)
    assert score(jets, "snip", mlp(), batch_size=32) == pytest.approx(saliency, rel=1e-5)


def test_snip_of_weights_that_are_zero_is_zero(jets):
    model = mlp()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert score(jets, "snip", model) == 0


def test_synflow_by_hand(jets):
    model = mlp()
    for layer in (model[0], model[2]):
        nn.init.zeros_(layer.bias)
    first, second = (layer.weight.detach().double().abs() for layer in (model[0], model[2]))
    flow = (second @ first @ torch.ones(16, dtype=torch.float64)).sum().item()
    # each layer's weights times their gradients add up to the whole flow
    assert score(jets, "synflow", model) == pytest.approx(2 * flow, rel=1e-9)


def test_synflow_does_not_look_at_data_or_signs(jets):
    model = nn.Sequential(mlp(), nn.BatchNorm1d(5))
    before = score(jets, "synflow", model)
    split = jets.data_module.train_dataset
    others = with_splits(jets, train_dataset=TensorSplit(split.x + 3, 4 - split.y))
    assert score(others, "synflow", model) == before > 0
    with torch.no_grad():
        model[0][0].weight.neg_()
        model[1].running_mean.fill_(9)
    assert score(jets, "synflow", model) == before


@pytest.mark.parametrize("name", ["synflow", "snip", "grad_norm", "naswot"])
def test_wider_networks_score_higher(jets, name):
    # all weights alike, so that only the width differs
    def alike(width):
        model = mlp(width)
        if name == "synflow":
            for layer in (model[0], model[2]):
                nn.init.constant_(layer.weight, 0.1)
        return model

    narrow, wide = (score(jets, name, alike(width)) for width in (4, 256))
    assert wide > narrow


def test_naswot_by_hand(jets):
    model = mlp(6)
    x, _ = batch_of(jets, "naswot", batch_size=4)
    codes = (model[0](x) > 0).int()
    kernel = [[6 - int((a != b).sum()) for b in codes] for a in codes]
    ridge = 1e-5 * torch.eye(4, dtype=torch.float64)
    expected = torch.linalg.slogdet(torch.tensor(kernel, dtype=torch.float64) + ridge)[1].item()
    assert score(jets, "naswot", mlp(6), batch_size=4) == pytest.approx(expected, rel=1e-9)


def test_naswot_sees_functions_as_it_sees_modules(jets):
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = mlp(6)

        def forward(self, x):
            return self.layers[2](F.relu(self.layers[0](x)))

    assert score(jets, "naswot", Functional()) == score(jets, "naswot", mlp(6))


def test_naswot_refuses_a_network_without_activations(jets):
    with pytest.raises(ValueError, match=r"naswot needs activations .* relu"):
        score(jets, "naswot", nn.Linear(16, 5))


def test_samples_that_cannot_be_told_apart_have_a_finite_and_low_score(jets):
    linear, curved = nn.Sequential(nn.Linear(16, 5), nn.Identity()), mlp(64)
    same, other = (score(jets, "jacob_cov", model) for model in (linear, curved))
    assert math.isfinite(same)
    assert same < other
    constant = mlp()
    nn.init.zeros_(constant[2].weight)
    assert math.isfinite(score(jets, "jacob_cov", constant))


def test_jacob_cov_by_hand(jets):
    model = mlp(64)
    x, _ = batch_of(jets, "jacob_cov", batch_size=8)
    x.requires_grad_()
    [rows] = torch.autograd.grad(model(x).sum(), x)
    values = torch.linalg.eigvalsh(torch.corrcoef(rows.double()))
    expected = -sum(math.log(v + 1e-5) + 1 / (v + 1e-5) for v in values.tolist())
    assert score(jets, "jacob_cov", mlp(64), batch_size=8) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", PROXIES)
def test_the_batch_follows_from_the_seed_of_the_search(jets, name):
    x, y = batch_of(jets, name, batch_size=16)
    again, _ = batch_of(jets, name, batch_size=16)
    assert torch.equal(x, again)
    assert len(x) == len(y) == 16
    other, _ = batch_of(type(jets)(**{**vars(jets), "seed": 5}), name, batch_size=16)
    assert not torch.equal(x, other)
