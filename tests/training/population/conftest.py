"""Families of small networks, and what each member becomes when it is trained alone."""

from __future__ import annotations

import copy
import random
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from chop.dataset import TensorSplit
from chop.numerics import FORMATS
from chop.passes.graph.transforms.quantize.quantized_modules import LAYERS, variant
from chop.training.devices import Place
from chop.training.loop import Training
from chop.training.options import TrainOptions

FEATURES, CLASSES = 6, 4
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


@pytest.fixture(scope="session")
def family():
    """The makers above."""
    return SimpleNamespace(
        data=data,
        integer=integer,
        of_format=of_format,
        others=OTHERS,
        smooth=[name for name in OTHERS if name != "binary"],
        quantized=quantized,
        mlp=mlp,
        Residual=Residual,
        options=options,
        alone=alone,
        distance=distance,
        copy=copy.deepcopy,
        random=random.Random,
        splits=(data(1, 150), data(2, 60)),
    )
