"""Convolutions, poolings and shortcuts are batched too, and learn as alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.methods.population import reason_against

SHAPE = (2, 6, 6)


class Block(nn.Module):
    """Two convolutions around which the input goes, in the ways people write that."""

    def __init__(self, width: int, make) -> None:
        super().__init__()
        self.one = make(nn.Conv2d(width, width, 3, padding=1, bias=False))
        self.norm = make(nn.BatchNorm2d(width))
        self.two = make(nn.Conv2d(width, width, 3, padding="same"))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm(self.one(x)))
        out = self.two(out)
        out += x
        return F.relu(out)


class Picture(nn.Module):
    def __init__(self, width: int, make=lambda layer: layer) -> None:
        super().__init__()
        torch.manual_seed(width)
        self.stem = make(nn.Conv2d(SHAPE[0], width, 3, stride=1, padding=1))
        self.each = make(nn.Conv2d(width, width, 3, padding=1, groups=width))
        self.block = Block(width, make)
        self.pool = nn.MaxPool2d(2)
        self.act = make(nn.Sigmoid())
        self.fc1 = make(nn.Linear(width * 9, 2 * width))
        self.fc2 = make(nn.Linear(2 * width, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.block(self.each(self.stem(x))))
        x = x.view(x.size(0), -1)
        return self.fc2(torch.tanh(self.fc1(self.act(x))))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("format", [None, "integer", "scale_integer", "block_fp"])
def test_small_resnets_of_several_widths_learn_as_alone(family, format):
    config = family.integer(8, 5) if format == "integer" else format and family.of_format(format)
    widths = (2, 5, 3)
    models = [
        Picture(widths[0]),
        *(Picture(width, lambda layer: family.quantized(layer, config)) for width in widths[1:]),
    ]
    assert reason_against(models) is None
    splits = family.data(1, 70, SHAPE), family.data(2, 40, SHAPE)
    chosen = [family.options(max_steps=n, learning_rate=3e-3, seed=n) for n in (3, 5, 4)]
    family.assert_as_alone(models, chosen, splits, batch_size=16)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("format", ["integer", "scale_integer", "ternary"])
def test_pictures_that_are_flattened_first_learn_as_alone(family, format):
    config = family.integer(7, 4) if format == "integer" else family.of_format(format)

    def make(width: int) -> nn.Module:
        torch.manual_seed(width)
        layers = nn.Linear(72, width), nn.Sigmoid(), nn.Linear(width, 4)
        return nn.Sequential(nn.Flatten(), *(family.quantized(layer, config) for layer in layers))

    models = [make(width) for width in (3, 6)]
    splits = family.data(1, 50, SHAPE), family.data(2, 30, SHAPE)
    family.assert_as_alone(models, family.options(), splits, batch_size=16)


def sequence(width: int) -> nn.Module:
    torch.manual_seed(width)
    return nn.Sequential(
        nn.Conv1d(2, width, 3, bias=False),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.AvgPool1d(2),
        nn.AdaptiveAvgPool1d(2),
        nn.Flatten(),
        nn.Linear(2 * width, 4),
    )


def test_sequences_learn_as_alone(family):
    models = [sequence(width) for width in (3, 6)]
    splits = family.data(1, 50, (2, 10)), family.data(2, 30, (2, 10))
    family.assert_as_alone(models, family.options(), splits, batch_size=16)


def test_prepared_and_varied_images_are_each_candidates_own(family):
    from chop.dataset import TensorSplit

    def flipped(x, generator):
        flip = torch.rand(len(x), generator=generator) < 0.5
        return torch.where(flip.view(-1, 1, 1, 1), x.flip(-1), x)

    stored = family.data(1, 50, SHAPE)
    split = TensorSplit(stored.x, stored.y, prepare=lambda x: x * 2, augment=flipped)
    models = [Picture(width) for width in (2, 3)]
    chosen = [family.options(max_epochs=1, learning_rate=1e-3, seed=seed) for seed in (3, 4)]
    family.assert_as_alone(models, chosen, (split, None), batch_size=16)
