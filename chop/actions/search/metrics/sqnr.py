"""`sqnr`: how close the output of a candidate is to that of its parent."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor, nn

from chop.actions.search.metrics.base import Metrics, Runner, RunnerContext, Trial, register_runner
from chop.actions.search.metrics.samples import Batch, Loader, first_of, on_device, split_of
from chop.actions.search.metrics.state import isolated
from chop.dataset.nested import Inputs, copied
from chop.options import PositiveInt
from chop.training.outputs import Predictor
from chop.training.tasks import task_named

# in decibel: float32 cannot resolve more, and a score must be finite
LIMIT = -20 * math.log10(torch.finfo(torch.float32).eps)


@register_runner("sqnr", "software", sqnr="maximize")
class Sqnr(Runner):
    """Signal-to-quantisation-noise ratio of the outputs against the parent's, in decibel.

    It needs no labels. A candidate that equals its parent has 138.5 dB, the resolution of float32,
    and one without any signal has minus that.
    """

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
    def _references(self) -> list[Batch]:
        """Samples, and the parent's output for them."""
        context = self.context
        batches = on_device(context, self._split, self._batch_size)
        with isolated(context.model, context.device, context.seed), torch.inference_mode():
            predict = self._predictor(context.model)
            return [(x, predict(copied(x)).double()) for x, _ in batches]

    def _predictor(self, model: nn.Module) -> Predictor:
        return Predictor(model, scores=task_named(self.context.task).of_scores)

    def __call__(self, trial: Trial) -> Metrics:
        references = self._references
        with isolated(trial.model, self.context.device, trial.seed), torch.inference_mode():
            predict = self._predictor(trial.model)
            powers = [_powers(predict, x, reference) for x, reference in references]
            signal, noise = torch.stack(powers).sum(0).tolist()
        return {"sqnr": decibel(signal, noise)}


def _powers(predict: Predictor, x: Inputs, reference: Tensor) -> Tensor:
    """Return the power of the signal and of the noise."""
    noise = predict(copied(x)) - reference
    return torch.stack([reference.square().sum(), noise.square().sum()])


def decibel(signal: float, noise: float) -> float:
    """Return signal over noise, clamped to what float32 resolves; NaN stays NaN."""
    if math.isnan(noise):
        return math.nan
    if noise == 0.0:
        return LIMIT
    if signal == 0.0 or math.isinf(noise):
        return -LIMIT
    return max(-LIMIT, min(LIMIT, 10 * math.log10(signal / noise)))
