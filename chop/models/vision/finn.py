"""LFC and CNV, the networks of FINN (Umuroglu et al. 2016), before they are binarised.

Their activation is the clamp to [-1, 1], whose binary form is the sign.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from chop.dataset.base import MaseDatasetInfo
from chop.models.vision.base import image_shape, vision_model


def _dense(before: int, after: int) -> list[nn.Module]:
    return [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.Hardtanh()]


def _filters(before: int, after: int) -> list[nn.Module]:
    """A 3x3 convolution without padding, so the image loses a pixel on every side."""
    return [nn.Conv2d(before, after, 3, bias=False), nn.BatchNorm2d(after), nn.Hardtanh()]


class LFC(nn.Module):
    """Three hidden layers of 1,024 on the flattened picture."""

    def __init__(self, image_size: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        widths = pairwise([math.prod(image_size), 1024, 1024, 1024])
        layers = [layer for before, after in widths for layer in _dense(before, after)]
        self.features = nn.Sequential(*layers, nn.Linear(1024, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.features(torch.flatten(x, 1))
        return out


class CNV(nn.Module):
    """Six convolutions in pairs of 64, 128 and 256 filters, then two layers of 512."""

    def __init__(self, image_size: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_size
        self.conv_features = nn.Sequential(
            *_filters(channels, 64),
            *_filters(64, 64),
            nn.MaxPool2d(2),
            *_filters(64, 128),
            *_filters(128, 128),
            nn.MaxPool2d(2),
            *_filters(128, 256),
            *_filters(256, 256),
        )
        flat = 256 * self.pixels_left(height) * self.pixels_left(width)
        self.linear_features = nn.Sequential(
            *_dense(flat, 512), *_dense(512, 512), nn.Linear(512, num_classes)
        )

    @staticmethod
    def pixels_left(pixels: int) -> int:
        """What the convolutions leave of a side; 32 pixels become one."""
        return ((pixels - 4) // 2 - 4) // 2 - 4

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_features(torch.flatten(self.conv_features(x), 1))
        return out


@vision_model("lfc")
def get_lfc(info: MaseDatasetInfo) -> nn.Module:
    """Three hidden layers of 1,024 for MNIST, made to be binarised."""
    return LFC(image_shape(info), info["num_classes"])


@vision_model("cnv")
def get_cnv(info: MaseDatasetInfo) -> nn.Module:
    """Six convolutions and three linear layers for CIFAR, made to be binarised."""
    return CNV(image_shape(info, at_least=32), info["num_classes"])
