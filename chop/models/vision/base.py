"""What the vision models share: how they register, small images, and first weights."""

from __future__ import annotations

from functools import partial

from torch import nn

from chop.dataset.base import MaseDatasetInfo
from chop.models.base import ModelSource, ModelTaskType, model

vision_model = partial(
    model, task_type=ModelTaskType.VISION, model_source=ModelSource.VISION_OTHERS
)

SMALL = 64  # pixels; networks made for 224 shrink images of this size to nothing


def image_shape(info: MaseDatasetInfo) -> tuple[int, int, int]:
    """Channels, height and width of the images."""
    size = tuple(info["image_size"])
    if len(size) != 3:
        raise ValueError(
            f"image_size is (channels, height, width); data set {info.name!r} has {size}"
        )
    return size


def is_small(info: MaseDatasetInfo) -> bool:
    """Whether a network should keep the resolution of its input in its first layers."""
    return max(image_shape(info)[1:]) <= SMALL


def init_conv_net(net: nn.Module) -> None:
    """He's normal weights for convolutions, fan-out, as the papers of these networks train from."""
    for module in net.modules():
        if not isinstance(module, nn.Conv2d):
            continue
        nn.init.kaiming_normal_(module.weight, mode="fan_out")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
