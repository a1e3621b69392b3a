"""MobileNet V2 (Sandler et al. 2018) and V3 (Howard et al. 2019).

Parameters carry the names of the published weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from chop.dataset.base import MaseDatasetInfo
from chop.models.vision.base import image_shape, init_conv_net, is_small, vision_model

Activation = Callable[[], nn.Module]
Norm = Callable[[int], nn.Module]

relu = partial(nn.ReLU, inplace=True)
relu6 = partial(nn.ReLU6, inplace=True)
hardswish = partial(nn.Hardswish, inplace=True)
v3_norm = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01)


def nearest_eighth(channels: float) -> int:
    """Return the nearest multiple of eight that is at most 10 % below `channels`.

    >>> nearest_eighth(18), nearest_eighth(120 / 4)
    (24, 32)
    """
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def conv_norm(
    inputs: int,
    outputs: int,
    size: int,
    *,
    norm: Norm,
    activation: Activation | None,
    stride: int = 1,
    groups: int = 1,
) -> nn.Sequential:
    """Return a convolution with its normalisation and optional activation."""
    conv = nn.Conv2d(
        inputs, outputs, size, stride=stride, padding=size // 2, groups=groups, bias=False
    )
    return nn.Sequential(conv, norm(outputs), *([activation()] if activation else []))


class V2Block(nn.Module):
    """Expand by `expansion`, filter each channel, and project without an activation."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        wide = partial(conv_norm, norm=nn.BatchNorm2d, activation=relu6)
        self.conv = nn.Sequential(
            *([wide(inputs, hidden, 1)] if expansion != 1 else []),
            wide(hidden, hidden, 3, stride=stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.residual else out


# expansion, channels, blocks, stride of the first
V2_STAGES = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]


class MobileNet(nn.Module):
    """Classifies the means of the features over the image."""

    features: nn.Module
    avgpool: nn.Module
    classifier: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flatten(self.avgpool(self.features(x)), 1)
        out: Tensor = self.classifier(x)
        return out


class MobileNetV2(MobileNet):
    """Inverted residual blocks; `small_images` keeps the resolution in the first layer."""

    def __init__(self, num_classes: int, channels: int, small_images: bool) -> None:
        super().__init__()
        wide = partial(conv_norm, norm=nn.BatchNorm2d, activation=relu6)
        layers: list[nn.Module] = [wide(channels, 32, 3, stride=1 if small_images else 2)]
        width = 32
        for expansion, outputs, blocks, first in V2_STAGES:
            for index in range(blocks):
                stride = first if index == 0 else 1
                layers.append(V2Block(width, outputs, stride=stride, expansion=expansion))
                width = outputs
        self.features = nn.Sequential(*layers, wide(width, 1280, 1))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, num_classes))
        init_conv_net(self)


class SqueezeExcite(nn.Module):
    """Scale every channel by a learned function of all channels' means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = nearest_eighth(channels / 4)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.activation = nn.ReLU()
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.scale_activation = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.fc2(self.activation(self.fc1(self.avgpool(x))))
        out: Tensor = x * self.scale_activation(scale)
        return out


class V3Row(NamedTuple):
    """One row of the tables in the paper."""

    kernel: int
    expanded: int
    out: int
    squeeze: bool
    activation: Activation
    stride: int


class V3Block(nn.Module):
    """The block of V2 with a configurable activation and optional squeeze-and-excite."""

    def __init__(self, inputs: int, row: V3Row) -> None:
        super().__init__()
        wide = partial(conv_norm, norm=v3_norm, activation=row.activation)
        hidden = row.expanded
        self.block = nn.Sequential(
            *([wide(inputs, hidden, 1)] if hidden != inputs else []),
            wide(hidden, hidden, row.kernel, stride=row.stride, groups=hidden),
            *([SqueezeExcite(hidden)] if row.squeeze else []),
            conv_norm(hidden, row.out, 1, norm=v3_norm, activation=None),
        )
        self.residual = row.stride == 1 and inputs == row.out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x)
        return x + out if self.residual else out


V3_LARGE = [
    V3Row(3, 16, 16, False, relu, 1),
    V3Row(3, 64, 24, False, relu, 2),
    V3Row(3, 72, 24, False, relu, 1),
    V3Row(5, 72, 40, True, relu, 2),
    V3Row(5, 120, 40, True, relu, 1),
    V3Row(5, 120, 40, True, relu, 1),
    V3Row(3, 240, 80, False, hardswish, 2),
    V3Row(3, 200, 80, False, hardswish, 1),
    V3Row(3, 184, 80, False, hardswish, 1),
    V3Row(3, 184, 80, False, hardswish, 1),
    V3Row(3, 480, 112, True, hardswish, 1),
    V3Row(3, 672, 112, True, hardswish, 1),
    V3Row(5, 672, 160, True, hardswish, 2),
    V3Row(5, 960, 160, True, hardswish, 1),
    V3Row(5, 960, 160, True, hardswish, 1),
]
V3_SMALL = [
    V3Row(3, 16, 16, True, relu, 2),
    V3Row(3, 72, 24, False, relu, 2),
    V3Row(3, 88, 24, False, relu, 1),
    V3Row(5, 96, 40, True, hardswish, 2),
    V3Row(5, 240, 40, True, hardswish, 1),
    V3Row(5, 240, 40, True, hardswish, 1),
    V3Row(5, 120, 48, True, hardswish, 1),
    V3Row(5, 144, 48, True, hardswish, 1),
    V3Row(5, 288, 96, True, hardswish, 2),
    V3Row(5, 576, 96, True, hardswish, 1),
    V3Row(5, 576, 96, True, hardswish, 1),
]


class MobileNetV3(MobileNet):
    """The blocks of `rows`, then a classifier with a hidden layer of `head` channels."""

    def __init__(
        self, rows: Sequence[V3Row], head: int, num_classes: int, channels: int, small_images: bool
    ) -> None:
        super().__init__()
        wide = partial(conv_norm, norm=v3_norm, activation=hardswish)
        layers: list[nn.Module] = [wide(channels, 16, 3, stride=1 if small_images else 2)]
        width = 16
        for row in rows:
            layers.append(V3Block(width, row))
            width = row.out
        self.features = nn.Sequential(*layers, wide(width, 6 * width, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(6 * width, head),
            nn.Hardswish(inplace=True),
            nn.Dropout(0.2),
            nn.Linear(head, num_classes),
        )
        init_conv_net(self)


@vision_model("mobilenetv2")
def mobilenetv2(info: MaseDatasetInfo, *, small_images: bool | None = None) -> nn.Module:
    """MobileNet V2: 3.5 million parameters on ImageNet."""
    return MobileNetV2(info["num_classes"], image_shape(info)[0], is_small(info, small_images))


@vision_model("mobilenetv3_small")
def mobilenetv3_small(info: MaseDatasetInfo, *, small_images: bool | None = None) -> nn.Module:
    """MobileNet V3 Small: 2.5 million parameters on ImageNet."""
    small = is_small(info, small_images)
    return MobileNetV3(V3_SMALL, 1024, info["num_classes"], image_shape(info)[0], small)


@vision_model("mobilenetv3_large")
def mobilenetv3_large(info: MaseDatasetInfo, *, small_images: bool | None = None) -> nn.Module:
    """MobileNet V3 Large: 5.5 million parameters on ImageNet."""
    small = is_small(info, small_images)
    return MobileNetV3(V3_LARGE, 1280, info["num_classes"], image_shape(info)[0], small)
