"""Residual networks (He et al. 2015) and wide ones (Zagoruyko and Komodakis 2016).

Parameters carry the names of the published weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from chop.dataset.base import MaseDatasetInfo
from chop.models.vision.base import image_shape, init_conv_net, is_small, vision_model


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """Return the projection to the shape of a block's output; None if it equals the input's."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a skip connection."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int, base_width: int) -> None:
        super().__init__()
        self.conv1 = conv(inputs, planes, 3, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv(planes, planes, 3)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = shortcut(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        added: Tensor = self.relu(out)
        return added


class Bottleneck(nn.Module):
    """A 3x3 convolution between 1x1 convolutions that reduce and restore the channels."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int, base_width: int) -> None:
        super().__init__()
        narrow, outputs = planes * base_width // 64, planes * self.expansion
        self.conv1 = conv(inputs, narrow, 1)
        self.bn1 = nn.BatchNorm2d(narrow)
        self.conv2 = conv(narrow, narrow, 3, stride)
        self.bn2 = nn.BatchNorm2d(narrow)
        self.conv3 = conv(narrow, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        added: Tensor = self.relu(out)
        return added


class ResNet(nn.Module):
    """A stem, four stages of blocks, and a linear classifier.

    `small_images` gives the stem of CIFAR: a 3x3 convolution that keeps the resolution.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        *,
        num_classes: int,
        channels: int = 3,
        width: int = 64,
        base_width: int = 64,
        small_images: bool = False,
    ) -> None:
        super().__init__()
        self.conv1 = conv(channels, width, 3) if small_images else conv(channels, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, stride=2, padding=1)
        inputs, stages = width, list[nn.Module]()
        for stage, depth in enumerate(depths):
            planes, blocks = width * 2**stage, list[nn.Module]()
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(inputs, planes, stride, base_width))
                inputs = planes * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, num_classes)
        init_conv_net(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        out: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return out


def _resnet(
    info: MaseDatasetInfo,
    small_images: bool | None,
    block: type[BasicBlock] | type[Bottleneck],
    *depths: int,
    base_width: int = 64,
) -> ResNet:
    return ResNet(
        block,
        depths,
        num_classes=info["num_classes"],
        channels=image_shape(info)[0],
        base_width=base_width,
        small_images=is_small(info, small_images),
    )


@vision_model("resnet18")
def resnet18(info: MaseDatasetInfo, *, small_images: bool | None = None) -> nn.Module:
    """Residual network with 18 layers: 11.7 million parameters on ImageNet."""
    return _resnet(info, small_images, BasicBlock, 2, 2, 2, 2)


@vision_model("resnet34")
def resnet34(info: MaseDatasetInfo, *, small_images: bool | None = None) -> nn.Module:
    """Residual network with 34 layers: 21.8 million parameters on ImageNet."""
    return _resnet(info, small_images, BasicBlock, 3, 4, 6, 3)


@vision_model("resnet50")
def resnet50(info: MaseDatasetInfo, *, small_images: bool | None = None) -> nn.Module:
    """Residual network with 50 layers (bottleneck blocks): 25.6 million parameters on ImageNet."""
    return _resnet(info, small_images, Bottleneck, 3, 4, 6, 3)


@vision_model("resnet101")
def resnet101(info: MaseDatasetInfo, *, small_images: bool | None = None) -> nn.Module:
    """Residual network with 101 layers (bottleneck blocks): 44.5 million parameters on ImageNet."""
    return _resnet(info, small_images, Bottleneck, 3, 4, 23, 3)


@vision_model("wideresnet50_2")
def wideresnet50_2(info: MaseDatasetInfo, *, small_images: bool | None = None) -> nn.Module:
    """ResNet-50 with bottlenecks of twice the width: 68.9 million parameters on ImageNet."""
    return _resnet(info, small_images, Bottleneck, 3, 4, 6, 3, base_width=128)
