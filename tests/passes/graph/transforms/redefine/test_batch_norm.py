"""Statistics of batch norms, counted anew."""

import pytest
import torch
from torch import nn

from chop.passes.graph import redefine_transform_pass
from chop.passes.graph.transforms.redefine import reestimate_batch_norm


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=0.9), nn.Dropout(0.5))


BATCHES = list(torch.randn(5, 8, 3, generator=torch.Generator().manual_seed(1)))


def test_statistics_are_means_over_the_batches():
    model = net().eval()
    assert reestimate_batch_norm(model, BATCHES) == 5
    with torch.no_grad():
        seen = [model[0](batch) for batch in BATCHES]
    torch.testing.assert_close(
        model[1].running_mean, torch.stack([y.mean(0) for y in seen]).mean(0)
    )
    torch.testing.assert_close(model[1].running_var, torch.stack([y.var(0) for y in seen]).mean(0))


def test_nothing_else_changes():
    model = net().train()
    model[1].eval()
    weights = [p.clone() for p in model.parameters()]
    state = torch.get_rng_state()
    reestimate_batch_norm(model, [(batch, None) for batch in BATCHES])
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), weights, strict=True))
    assert (model.training, model[1].training, model[1].momentum) == (True, False, 0.9)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("batches", [[], [torch.zeros(2, 5)]])
def test_what_fails_leaves_the_statistics_as_they_were(batches):
    model = net()
    model[1].running_mean.normal_()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises((ValueError, RuntimeError), match=r"at least one|shapes"):
        reestimate_batch_norm(model, batches)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model[1].momentum == 0.9


def test_a_model_without_batch_norms_is_not_run():
    assert reestimate_batch_norm(nn.Linear(3, 3), iter([None])) == 0


def test_a_narrowed_heir_gets_the_statistics_of_what_it_computes(parents):
    parent = parents("resnet")
    half = {"config": {"name": "both", "channel_multiplier": 0.5}}
    mg, info = redefine_transform_pass(
        parent.graph.clone(), {"default": half, "weights": "inherit"}
    )
    assert info["fresh"] == []
    norm = mg.modules["layer4.1.bn2"]
    before = norm.running_mean.clone()
    assert reestimate_batch_norm(mg, [{"x": parent.x}]) == 1
    assert not torch.equal(norm.running_mean, before)
    means, expected = [], norm.running_mean.clone()
    source = mg.modules["layer4.1.conv2"]
    source.register_forward_hook(lambda m, args, out: means.append(out.mean((0, 2, 3))))
    mg.model.train()(parent.x)
    torch.testing.assert_close(expected, means[0])
