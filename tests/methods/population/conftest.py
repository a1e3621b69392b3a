"""Families of small networks, and what each member becomes when it is trained alone."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from chop.dataset import TensorSplit
from chop.methods.population import train_population
from chop.numerics import FORMATS
from chop.passes.graph.transforms.quantize.quantized_modules import LAYERS, variant
from chop.training.devices import Place
from chop.training.loop import Training
from chop.training.options import TrainOptions

FEATURES, CLASSES = 6, 4
TOLERANCE = 1e-8  # rounding of sums in float64, after a few steps of Adam
PLACE = Place(torch.device("cpu"))
OTHERS = {
    "minifloat_ieee": {"width": 8, "exponent_width": 4, "exponent_bias": 7},
    "log": {"width": 6, "exponent_bias": 15},
    "block_fp": {"width": 6, "exponent_width": 8, "exponent_bias": 127, "block_size": [2]},
    "binary": {"width": 1, "stochastic": False, "bipolar": True},
    "ternary": {"width": 2, "scaling_factor": True, "mean": None, "median": None, "max": None},
    "scale_integer": {"width": 5},
    "fp8": {"exponent_width": 4, "frac_width": 3},
}


def data(seed: int, size: int, shape: tuple[int, ...] = (FEATURES,)) -> TensorSplit:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, *shape, generator=generator)
    flat = x.flatten(1)
    weight = torch.randn(flat.shape[1], CLASSES, generator=torch.Generator().manual_seed(9))
    return TensorSplit(x, (flat @ weight).argmax(1))


def integer(width: int, frac_width: int, **others) -> dict:
    config = {"name": "integer"} | others
    for operand in ("data_in", "weight", "bias"):
        config |= {f"{operand}_width": width, f"{operand}_frac_width": frac_width}
    return config


def of_format(name: str) -> dict:
    keys = OTHERS[name]
    operands = ("data_in", "weight", "bias")
    return {"name": name} | {f"{o}_{key}": v for o in operands for key, v in keys.items()}


def quantized(layer: nn.Module, config: dict | None) -> nn.Module:
    """`layer` in a format; None leaves it in float."""
    if config is None or type(layer) not in LAYERS:
        return layer
    return variant(LAYERS[type(layer)], FORMATS[config["name"]]).from_float(layer, config)


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def mlp(widths, *, seed=0, norm=True, residual=False, activation=nn.ReLU, config=None):
    """Linear layers of `widths`, each normalised and activated, from FEATURES to CLASSES.

    A layer before a norm has no bias: its gradient would be rounding noise, which Adam enlarges.
    """
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    before = FEATURES
    for width in widths:
        layers.append(quantized(nn.Linear(before, width, bias=not norm), config))
        layers += [quantized(nn.BatchNorm1d(width), config)] if norm else []
        layers.append(quantized(activation(), config))
        if residual:
            inner = quantized(nn.Linear(width, width), config), quantized(activation(), config)
            layers.append(Residual(*inner))
        before = width
    return nn.Sequential(*layers, quantized(nn.Linear(before, CLASSES), config))


def options(**changes) -> TrainOptions:
    usual = {"max_epochs": 2, "learning_rate": 1e-2, "precision": "64", "progress": False}
    return TrainOptions(**(usual | changes))


def alone(model, splits, chosen, *, batch_size=32, names=None):
    """Train one network by our own loop."""
    train, val = splits
    module = SimpleNamespace(
        train_dataset=train, val_dataset=val, batch_size=batch_size, num_workers=0
    )
    return Training(model, module, chosen, place=PLACE, names=names).fit()


def distance(a: nn.Module, b: nn.Module) -> float:
    """The largest difference between two networks of one shape."""
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return max((x.double() - y.double()).abs().max().item() for x, y in pairs)


def assert_as_alone(models, chosen, splits, *, batch_size=32, **others):
    """Train `models` as a population, and copies of them one by one: each learns the same."""
    chosen = [chosen] * len(models) if isinstance(chosen, TrainOptions) else chosen
    apart = [copy.deepcopy(model) for model in models]
    outcomes = train_population(models, splits, chosen, batch_size=batch_size, **others)
    for model, single, own, outcome in zip(models, apart, chosen, outcomes, strict=True):
        fitted = alone(single, splits, own, batch_size=batch_size)
        assert distance(model, single) < TOLERANCE
        assert outcome.steps == fitted.progress.step
        assert outcome.epochs == fitted.progress.epoch
        assert outcome.best_epoch == fitted.progress.best_epoch
        if fitted.validation is not None:
            assert outcome.loss == pytest.approx(fitted.validation.loss, abs=TOLERANCE)
            assert outcome.accuracy == pytest.approx(fitted.validation.accuracy)
    return outcomes


@pytest.fixture(scope="session")
def family():
    """The makers above."""
    makers = (data, integer, of_format, quantized, mlp, options, alone, distance, assert_as_alone)
    return SimpleNamespace(
        **{maker.__name__: maker for maker in makers},
        smooth=[name for name in OTHERS if name != "binary"],
        copy=copy.deepcopy,
        splits=(data(1, 150), data(2, 60)),
    )
