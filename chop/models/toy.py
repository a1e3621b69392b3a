"""Toy networks, small enough to inspect every number."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.dataset.base import MaseDatasetInfo
from chop.models.base import ModelFamily, model
from chop.models.info import ModelSource, ModelTaskType
from chop.models.vision.base import image_shape

__path__: list[str] = []  # so that chop.aliases is asked for modules below this one
TOY_MODELS = ModelFamily("toy model", lambda info: info.model_source is ModelSource.TOY)
toy_model = partial(model, task_type=ModelTaskType.VISION, model_source=ModelSource.TOY)


@toy_model("toy")
class ToyNet(nn.Module):
    """Two hidden layers of 8 on flattened images: 130 parameters on toy_tiny."""

    def __init__(self, info: MaseDatasetInfo) -> None:
        super().__init__()
        first = nn.Linear(math.prod(info["image_size"]), 8)
        hidden = [first, nn.ReLU(), nn.Linear(8, 8), nn.ReLU()]
        self.seq_blocks = nn.Sequential(*hidden, nn.Linear(8, info["num_classes"]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.seq_blocks(torch.flatten(x, 1))
        return out


@toy_model("toy_tiny")
class ToyTiny(nn.Module):
    """One linear layer, and one that is never used: 16 parameters on toy_tiny."""

    def __init__(self, info: MaseDatasetInfo) -> None:
        super().__init__()
        num_classes = info["num_classes"]
        self.l1 = nn.Linear(math.prod(info["image_size"]), num_classes)
        self.relu_1 = nn.ReLU()
        self.l2 = nn.Linear(num_classes, num_classes)
        self.relu_2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu_1(self.l1(torch.flatten(x, 1)))
        return out


@toy_model("toy_convnet")
class ToyConvNet(nn.Module):
    """Two 2D and two 1D convolutions, and a linear layer.

    The 1D convolutions are over the flattened pixels.
    """

    def __init__(self, info: MaseDatasetInfo) -> None:
        super().__init__()
        channels = image_shape(info, at_least=2)[0]
        self.block_1 = nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU())
        self.maxpool = nn.MaxPool2d(2)
        self.block_2 = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.block_3 = nn.Sequential(nn.Conv1d(16, 32, 3, padding=1), nn.ReLU())
        self.block_4 = nn.Sequential(nn.Conv1d(32, 64, 3, padding=1), nn.ReLU())
        self.avgpool = nn.AdaptiveAvgPool1d(1)
        self.linear = nn.Linear(64, info["num_classes"])

    def forward(self, x: Tensor) -> Tensor:
        x = self.block_2(self.maxpool(self.block_1(x)))
        x = x.view(x.size(0), x.size(1), -1)
        x = self.avgpool(self.block_4(self.block_3(x)))
        out: Tensor = self.linear(torch.flatten(x, 1))
        return out


@torch.fx.wrap
def smooth_step(x: Tensor) -> Tensor:
    """A function that is not in the table of ops; it stays one node of the graph."""
    return x * torch.sigmoid(2 * x)


@toy_model("toy_custom_fn")
class ToyCustomFnNet(nn.Module):
    """A hidden layer of 8 with a user-defined activation function.

    `batch_size` has no effect; scripts for other versions give it.
    """

    def __init__(self, info: MaseDatasetInfo, *, batch_size: int | None = None) -> None:
        super().__init__()
        self.fc1 = nn.Linear(math.prod(info["image_size"]), 8)
        self.fc2 = nn.Linear(8, info["num_classes"])

    def forward(self, x: Tensor) -> Tensor:
        x = smooth_step(self.fc1(torch.flatten(x, 1)))
        return F.relu(self.fc2(x))
