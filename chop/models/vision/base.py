"""Code that the vision models share: registration, image sizes, initial weights."""

from __future__ import annotations

import math
from functools import partial

from torch import nn

from chop.dataset.base import MaseDatasetInfo
from chop.models.base import model
from chop.models.info import ModelSource, ModelTaskType

vision_model = partial(
    model, task_type=ModelTaskType.VISION, model_source=ModelSource.VISION_OTHERS
)

SMALL = 64  # pixels; networks for 224 pixels would reduce images of this size to nothing


def image_shape(info: MaseDatasetInfo, at_least: int = 1) -> tuple[int, int, int]:
    """Return channels, height and width of the images; refuse sides below `at_least` pixels."""
    size = tuple(info["image_size"])
    if len(size) != 3:
        raise ValueError(
            f"image_size must be (channels, height, width), but data set {info.name!r} has {size}"
        )
    if min(size[1:]) < at_least:
        raise ValueError(
            f"images of data set {info.name!r} are {size[1]} x {size[2]} pixels, "
            f"but this network needs {at_least} x {at_least} or more"
        )
    return size


def is_small(info: MaseDatasetInfo, chosen: bool | None) -> bool:
    """Whether a network should keep the resolution of its input, unless the user has chosen."""
    return max(image_shape(info)[1:]) <= SMALL if chosen is None else chosen


def init_conv_net(net: nn.Module) -> None:
    """Initialise convolutions as He et al. (2015), which keeps the scale of gradients."""
    for module in net.modules():
        if not isinstance(module, nn.Conv2d):
            continue
        fan_out = module.out_channels // module.groups * math.prod(module.kernel_size)
        nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
