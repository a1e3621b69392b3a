"""VGG7 (Simonyan and Zisserman 2014, cut down for CIFAR as in ternary weight networks, 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chop.dataset.base import MaseDatasetInfo
from chop.models.vision.base import image_shape, vision_model


def _pair(inputs: int, outputs: int) -> list[nn.Module]:
    """Return two 3x3 convolutions and a pooling layer that halves the image."""
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs, momentum=0.9),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs, momentum=0.9),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    ]


class VGG7(nn.Module):
    """Six convolutions at three resolutions, then three linear layers."""

    def __init__(self, image_size: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_size
        self.feature_layers = nn.Sequential(
            *_pair(channels, 128), *_pair(128, 256), *_pair(256, 512)
        )
        self.classifier = nn.Sequential(
            nn.Linear(512 * (height // 8) * (width // 8), 1024),
            nn.ReLU(inplace=True),
            nn.Linear(1024, 1024),
            nn.ReLU(inplace=True),
        )
        self.last_layer = nn.Linear(1024, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flatten(self.feature_layers(x), 1)
        out: Tensor = self.last_layer(self.classifier(x))
        return out


@vision_model("vgg7", "vgg7_cifar")
def get_vgg7(info: MaseDatasetInfo) -> nn.Module:
    """VGG7 for small images, six convolutions and three linear layers: 14 million parameters."""
    return VGG7(image_shape(info, at_least=8), info["num_classes"])
