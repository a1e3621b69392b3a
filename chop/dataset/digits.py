"""1,797 handwritten digits of 8 × 8 pixels, shipped with the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from chop.dataset.base import Split, dataset
from chop.dataset.images import SPLIT_SEED, Normalize, image_info
from chop.dataset.tensors import TensorSplit

FILE = Path(__file__).parent / "data" / "digits.npz"
PREPARE = Normalize(mean=(0.3053,), std=(0.3760,), peak=16)
ENDS = (1258, 1438)  # 70 % training, 10 % validation, 20 % test


@dataset(image_info("digits", (1, 8, 8), 10, "0123456789"))
def digits(split: Split) -> TensorSplit:
    """1,797 handwritten digits of 8 × 8 pixels (UCI, as in scikit-learn), split 70:10:20."""
    with np.load(FILE) as file:
        x, y = file["x"], file["y"]
    train, validation, test = np.split(np.random.RandomState(SPLIT_SEED).permutation(len(y)), ENDS)
    rows = {"train": train, "validation": validation, "test": test, "pred": test}[split]
    images = torch.from_numpy(x[rows]).unsqueeze(1)
    return TensorSplit(images, torch.from_numpy(y[rows]).long(), prepare=PREPARE)
