"""Multi-layer perceptrons of any widths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from chop.dataset.base import MaseDatasetInfo
from chop.models.base import model
from chop.models.physical import SeqBlocks, relu


class MLP(SeqBlocks):
    """Linear layers of `widths`, from input to output, with a ReLU after all but the last."""

    def __init__(
        self, *widths: int, flatten: bool = False, batch_norm: bool = False, dropout: float = 0.0
    ) -> None:
        layers: list[nn.Module] = [nn.Flatten()] if flatten else []
        *hidden, last = pairwise(widths)
        for num_inputs, num_outputs in hidden:
            layers.append(nn.Linear(num_inputs, num_outputs))
            if batch_norm:
                layers.append(nn.BatchNorm1d(num_outputs))
            layers.append(relu())
            if dropout:
                layers.append(nn.Dropout(dropout))
        super().__init__(*layers, nn.Linear(last[0], last[1]))


@model("mlp", physical_data_point_classification=True, image_classification=True, regression=True)
def mlp(
    info: MaseDatasetInfo,
    *,
    hidden: Sequence[int] = (64, 32, 32),
    batch_norm: bool = False,
    dropout: float = 0.0,
) -> nn.Module:
    """Multi-layer perceptron with hidden layers of widths `hidden`; images are flattened."""
    if any(width < 1 for width in hidden):
        raise ValueError(f"hidden must be a list of positive widths, not {hidden!r}")
    inputs = info.num_features or math.prod(info["image_size"])
    return MLP(
        inputs,
        *hidden,
        info["num_outputs"],
        flatten=not info.num_features,
        batch_norm=batch_norm,
        dropout=dropout,
    )
