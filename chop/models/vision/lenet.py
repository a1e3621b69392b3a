"""A small network for digits, in the manner of LeNet (LeCun et al. 1998)."""

from __future__ import annotations

from torch import Tensor, nn

from chop.dataset.base import MaseDatasetInfo
from chop.models.vision.base import image_shape, vision_model


@vision_model("lenet")
class LeNet(nn.Module):
    """A small LeNet for MNIST: convolutions with 4 and 8 filters of 5 × 5, and 32 neurons."""

    def __init__(self, info: MaseDatasetInfo) -> None:
        super().__init__()
        channels, height, width = image_shape(info, at_least=12)
        self.conv_features = nn.Sequential(
            *(nn.Conv2d(channels, 4, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(4, 8, 5), nn.ReLU(), nn.MaxPool2d(2)),
        )
        left = [(size // 2 - 4) // 2 for size in (height, width)]
        self.linear_features = nn.Sequential(
            nn.Linear(8 * left[0] * left[1], 32), nn.ReLU(), nn.Linear(32, info["num_classes"])
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_features(self.conv_features(x).flatten(1))
        return out
