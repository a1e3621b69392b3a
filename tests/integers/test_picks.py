"""Parts of tensors are picked as codes, and never samples of the batch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.ir import MaseGraph
from chop.passes import PassArgsError, Pipeline

X = torch.randn(16, 3, 4, 8, generator=torch.Generator().manual_seed(0))
FORMAT = {"name": "affine", "data_in_width": 8, "data_in_scale": 0.0625, "weight_width": 8}


class Picks(nn.Module):
    """A function between two layers."""

    def __init__(self, function, kind=nn.Conv2d, sizes=(3, 4, 1)):
        super().__init__()
        self.a, self.b = kind(*sizes), kind(4, 4, *sizes[2:])
        self.function = function

    def forward(self, x):
        return self.b(self.function(F.relu(self.a(x))))


def quantised(model, x=X, **scales):
    config = {"config": FORMAT | scales}
    steps = [
        "init_metadata",
        ("add_common_metadata", {"dummy_in": {"x": x[:2]}, "add_value": False}),
        ("quantize", {"by": "type", "conv2d": config, "linear": config}),
    ]
    return Pipeline(steps)(MaseGraph(model.eval()))[0]


PICKED = {
    "steps": lambda y: y[:, :, ::2, ::2],
    "the rest": lambda y: y[..., 1:],
    "dots in the middle": lambda y: y[:, :, ..., 1:],
    "the end": lambda y: y[:, :, -2:],
    "one row": lambda y: y[:, :, 1].unsqueeze(2),
    "a new dimension": lambda y: y[:, None].squeeze(1),
    "narrow": lambda y: y.narrow(2, 1, 2),
    "select": lambda y: y.select(2, 1).unsqueeze(2),
    "flip": lambda y: y.flip(2, 3),
    "flip of a list": lambda y: torch.flip(y, [1]),
    "roll": lambda y: torch.roll(y, (1, 2), (1, -1)),
}
SAMPLES = {
    "the first samples": lambda y: y[:2],
    "more samples than the example has": lambda y: y[:100],
    "the last samples": lambda y: y[-2:],
    "samples and dots": lambda y: y[:2, ...],
    "narrow": lambda y: y.narrow(0, 0, 2),
    "flip": lambda y: y.flip(0),
    "roll by the size of the example": lambda y: torch.roll(y, 2, 0),
    "roll of two dimensions": lambda y: torch.roll(y, (2, 1), (0, 1)),
    "roll of all": lambda y: torch.roll(y, 2),
}


@pytest.mark.parametrize("name", PICKED)
def test_parts_are_picked_as_codes(name):
    graph = quantised(Picks(PICKED[name]))
    with torch.no_grad():
        wanted = graph.model(X)
    torch.testing.assert_close(graph.to_integers()(X), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_of_the_batch_are_not_picked(name):
    graph = quantised(Picks(SAMPLES[name]))
    with pytest.raises(PassArgsError, match="picks samples of the batch; keep all of them"):
        graph.to_integers()


def test_a_mean_over_features_with_scales_of_their_own_is_refused_by_its_name():
    mean = Picks(lambda y: y - y.mean(1, keepdim=True), nn.Linear, (3, 4))
    graph = quantised(mean, X[:, :, 0, 0], weight_axis=0)
    with pytest.raises(PassArgsError, match="mean"):
        graph.to_integers()


def test_an_infinite_bound_of_a_clamp_is_none():
    graph = quantised(Picks(lambda y: y.clamp(-math.inf, 0.5)))
    with torch.no_grad():
        wanted = graph.model(X)
    torch.testing.assert_close(graph.to_integers()(X), wanted, rtol=0, atol=1e-6)
