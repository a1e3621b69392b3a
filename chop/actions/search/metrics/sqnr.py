"""`sqnr`: how much of the parent's output a candidate keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor, nn

from chop.actions.search.metrics.base import (
    Direction,
    Metrics,
    Runner,
    RunnerContext,
    Trial,
    register_runner,
)
from chop.actions.search.metrics.samples import Batch, Loader, first_of, resident, split_of
from chop.actions.search.metrics.state import aside
from chop.options import PositiveInt

# in decibel; nothing differs less from float32 than by its rounding, and an infinite score is none
LIMIT = -20 * math.log10(torch.finfo(torch.float32).eps)


@register_runner("sqnr", "software")
class Sqnr(Runner):
    """Signal-to-quantisation-noise ratio of the scores against the parent's, in decibel.

    It needs no labels. A candidate that equals its parent has 138.5 dB, as much as float32 can
    tell, and one of which nothing is left has minus that.
    """

    metrics: Mapping[str, Direction] = {"sqnr": "maximize"}

    def __init__(
        self,
        context: RunnerContext,
        *,
        num_samples: PositiveInt = 512,
        data_loader: Loader = "val_dataloader",
        batch_size: PositiveInt | None = None,
    ) -> None:
        super().__init__(context)
        self._split = first_of(split_of(context, data_loader, "sqnr"), num_samples)
        self._batch_size = batch_size

    @cached_property
    def _wanted(self) -> list[Batch]:
        """Samples, and what the parent makes of them."""
        context = self.context
        batches = resident(context, self._split, self._batch_size)
        with aside(context.model, context.device, context.seed), torch.inference_mode():
            return [(x, context.model(x.clone()).double()) for x, _ in batches]

    def __call__(self, trial: Trial) -> Metrics:
        wanted = self._wanted
        with aside(trial.model, self.context.device, trial.seed), torch.inference_mode():
            parts = [_powers(trial.model, x, reference) for x, reference in wanted]
            signal, noise = torch.stack(parts).sum(0).tolist()
        return {"sqnr": decibel(signal, noise)}


def _powers(model: nn.Module, x: Tensor, reference: Tensor) -> Tensor:
    """Of the signal and of the noise."""
    noise = model(x.clone()) - reference
    return torch.stack([reference.square().sum(), noise.square().sum()])


def decibel(signal: float, noise: float) -> float:
    """Signal over noise, within what float32 can tell; NaN stays NaN."""
    if math.isnan(noise):
        return math.nan
    if noise == 0.0:
        return LIMIT
    if signal == 0.0 or math.isinf(noise):
        return -LIMIT
    return max(-LIMIT, min(LIMIT, 10 * math.log10(signal / noise)))
