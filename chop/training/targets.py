"""Where networks with few bits begin in a regression, as their outputs have few values."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from chop.dataset.tensors import TensorSplit
from chop.numerics.learned import LearnsBits
from chop.training.tasks import REGRESSION, TrainingTask

logger = logging.getLogger(__name__)

MAX_SPREAD = 2.0  # of targets that are scaled: from its reciprocal


def start_at_targets(model: nn.Module, split: Any, task: TrainingTask) -> None:
    """Give a last layer that learns its bits and was never trained the mean and range of targets.

    Targets that are scaled, with a mean of about 0 and a deviation of about 1, change nothing.
    """
    layers = [layer for layer in model.modules() if not any(True for _ in layer.children())]
    last = layers[-1] if layers else None
    if task is not REGRESSION or not isinstance(split, TensorSplit):
        return
    if not isinstance(last, LearnsBits):
        return
    targets = split.y.double().reshape(len(split.y), -1)
    mean, spread = targets.mean(0), targets.std(0)
    is_scaled = (mean.abs() <= spread) & (spread <= MAX_SPREAD) & (spread >= 1 / MAX_SPREAD)
    if not bool(is_scaled.all()) and last.start_at(mean, spread):
        logger.info("The targets are not scaled: the last layer begins with their mean and range")
