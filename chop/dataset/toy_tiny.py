"""Ten thousand random 2 × 2 images, classified by the sign of their sum."""

from __future__ import annotations

import numpy as np
import torch

from chop.dataset.base import SPLITS, Split, dataset
from chop.dataset.images import image_info
from chop.dataset.tensors import TensorSplit

SIZE = 10_240


@dataset(image_info("toy_tiny", (1, 2, 2), 2), "toy-tiny")
def toy_tiny(split: Split) -> TensorSplit:
    """10,240 random 2 × 2 images per split; the class is whether the sum of pixels is positive."""
    random = np.random.RandomState(SPLITS.index(split))
    x = torch.from_numpy(random.uniform(-1, 1, (SIZE, 1, 2, 2)).astype(np.float32))
    return TensorSplit(x, (x.sum((1, 2, 3)) > 0).long())
