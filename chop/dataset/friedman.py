"""Friedman's first regression problem, generated."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from chop.dataset.base import MaseDatasetInfo, Split, dataset
from chop.dataset.tensors import TensorSplit
from chop.options import NonNegativeFloat

SIZES: dict[Split, int] = {"train": 4000, "validation": 1000, "test": 1000, "pred": 1000}
SEEDS: dict[Split, int] = {"train": 0, "validation": 1, "test": 2, "pred": 2}


@dataset(MaseDatasetInfo(name="friedman", task="reg", num_features=10, num_targets=1))
def friedman(split: Split, *, noise: NonNegativeFloat = 1.0) -> TensorSplit:
    """Regression on ten uniform features, five of which matter (Friedman 1991)."""
    generator = Generator().manual_seed(SEEDS[split])
    x = torch.rand(SIZES[split], 10, generator=generator)
    y = target(x) + noise * torch.randn(len(x), generator=generator)
    return TensorSplit(2 * x - 1, y)


def target(x: Tensor) -> Tensor:
    """Return the target without noise for features from 0 to 1."""
    a, b, c, d, e = x.T[:5]
    y: Tensor = 10 * torch.sin(torch.pi * a * b) + 20 * (c - 0.5) ** 2 + 10 * d + 5 * e
    return y
