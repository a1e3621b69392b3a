"""The description of ImageNet, for models that are built for its images and classes."""

from __future__ import annotations

from chop.dataset.base import Split, dataset
from chop.dataset.images import image_info
from chop.dataset.tensors import TensorSplit

INFO = image_info("imagenet", (3, 224, 224), 1000)


@dataset(INFO)
def imagenet(split: Split) -> TensorSplit:
    """ImageNet as a description only: photographs in 1,000 classes, without the images."""
    raise ValueError(
        "data set 'imagenet' is a description without images, as they may not be distributed; "
        "write yours to an npz file, and use the data set 'npz' with `path`"
    )
