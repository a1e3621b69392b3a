"""LFC and CNV, the networks of FINN (Umuroglu et al. 2016), before they are binarised.

Their activation clamps to [-1, 1]; when binarised, it is the sign.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from chop.dataset.base import MaseDatasetInfo
from chop.models.vision.base import image_shape, vision_model


def _dense(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.Hardtanh()]


def _filters(inputs: int, outputs: int) -> list[nn.Module]:
    """Return a 3x3 convolution without padding, so the image loses a pixel on every side."""
    return [nn.Conv2d(inputs, outputs, 3, bias=False), nn.BatchNorm2d(outputs), nn.Hardtanh()]


@vision_model("lfc")
class LFC(nn.Module):
    """FINN's LFC for MNIST, to be binarised: three hidden layers of 1,024."""

    def __init__(self, info: MaseDatasetInfo) -> None:
        super().__init__()
        widths = pairwise([math.prod(image_shape(info)), 1024, 1024, 1024])
        layers = [layer for inputs, outputs in widths for layer in _dense(inputs, outputs)]
        self.features = nn.Sequential(*layers, nn.Linear(1024, info["num_classes"]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.features(torch.flatten(x, 1))
        return out


@vision_model("cnv")
class CNV(nn.Module):
    """FINN's CNV for CIFAR, to be binarised: six convolutions and three linear layers.

    The convolutions are pairs of 64, 128 and 256 filters, the hidden layers 512 wide.
    """

    def __init__(self, info: MaseDatasetInfo) -> None:
        super().__init__()
        channels, height, width = image_shape(info, at_least=32)
        pairs = [
            [*_filters(inputs, outputs), *_filters(outputs, outputs)]
            for inputs, outputs in ((channels, 64), (64, 128), (128, 256))
        ]
        pools = nn.MaxPool2d(2), nn.MaxPool2d(2)
        self.conv_features = nn.Sequential(*pairs[0], pools[0], *pairs[1], pools[1], *pairs[2])
        flat = 256 * self.pixels_left(height) * self.pixels_left(width)
        self.linear_features = nn.Sequential(
            *_dense(flat, 512), *_dense(512, 512), nn.Linear(512, info["num_classes"])
        )

    @staticmethod
    def pixels_left(pixels: int) -> int:
        """Return the height or width after the convolutions: 1 pixel for 32."""
        return ((pixels - 4) // 2 - 4) // 2 - 4

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_features(torch.flatten(self.conv_features(x), 1))
        return out
