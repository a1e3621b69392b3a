"""A small linear layer that learns its bits, and data on which it trains in a second."""

import pytest
import torch
from torch import nn

from chop.dataset import TensorSplit
from chop.numerics.learned import LearnsBits, learned_fixed, whole
from chop.training.learned import FrontOptions, train_front


class LearnedLinear(nn.Linear, LearnsBits):
    """A linear layer with learned widths for each weight and each input, and batch norm."""

    def __init__(self, n_in: int, n_out: int, *, bits: float = 4.0) -> None:
        super().__init__(n_in, n_out)
        self.weight_f = nn.Parameter(torch.full((n_out, n_in), bits))
        self.x_f = nn.Parameter(torch.full((n_in,), bits))
        self.register_buffer("one", torch.ones(()))
        self.register_buffer("mean", torch.zeros(n_out))

    def forward(self, x):
        x = learned_fixed(x, 2 * self.one, self.x_f)
        y = x @ learned_fixed(self.weight, self.one, self.weight_f).T + self.bias
        if self.training:
            self.mean.mul_(0.95).add_(0.05 * y.detach().mean(0))
            return y - y.mean(0)
        return y - self.mean

    def width_parameters(self):
        return {"weight_f": self.weight_f, "x_f": self.x_f}

    def bit_cost(self, cost, *, exact=False):
        rounded = torch.round if exact else whole
        weight = (1 + rounded(self.weight_f)).clamp(min=0)
        x = (3 + rounded(self.x_f)).clamp(min=0)
        if cost == "model_size":
            return weight.sum() / 8
        return (weight * x).sum()


def rows(size: int, seed: int) -> TensorSplit:
    x = torch.randn(size, 8, generator=torch.Generator().manual_seed(seed))
    weight = torch.randn(8, 4, generator=torch.Generator().manual_seed(99))
    return TensorSplit(x, (x @ weight).argmax(1))


def make_network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(LearnedLinear(8, 12), nn.ReLU(), LearnedLinear(12, 4))


def make_options(**changes) -> FrontOptions:
    short = {"cost": "ebops", "price": [1e-5, 1e-2], "members": 4, "steps": 80}
    short |= {"batch_size": 128, "checkpoints": 4, "learning_rate": 6e-2}
    return FrontOptions(**(short | changes))


@pytest.fixture
def splits():
    return rows(2000, 1), rows(500, 2)


@pytest.fixture
def network():
    return make_network()


@pytest.fixture
def options():
    return make_options


@pytest.fixture(scope="session")
def front():
    """The front of a short run, which several tests look at."""
    return train_front(make_network(), (rows(2000, 1), rows(500, 2)), make_options())
