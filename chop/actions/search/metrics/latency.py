"""`latency`: how long a forward pass takes, on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.actions.search.metrics.base import (
    Direction,
    Metrics,
    Runner,
    RunnerContext,
    Trial,
    register_runner,
)
from chop.actions.search.metrics.samples import any_split, first_of, resident
from chop.actions.search.metrics.state import aside
from chop.numerics import at_rest
from chop.options import NonNegativeInt, PositiveInt


@register_runner("latency", "hardware")
class Latency(Runner):
    """Milliseconds of a forward pass: the median, and the range between the quartiles.

    `warmup` calls go before the `repeats` that are measured. What is measured is this machine as it
    simulates the formats, not hardware that has them.
    """

    metrics: Mapping[str, Direction] = {"latency": "minimize", "latency_spread": "minimize"}

    def __init__(
        self,
        context: RunnerContext,
        *,
        warmup: NonNegativeInt = 3,
        repeats: PositiveInt = 20,
        batch_size: PositiveInt = 1,
    ) -> None:
        super().__init__(context)
        self._warmup, self._repeats, self._batch_size = warmup, repeats, batch_size
        self._split = any_split(context, "latency")

    @cached_property
    def _sample(self) -> Tensor:
        """As many samples as a batch has, some of them twice where the split is smaller."""
        batches = resident(self.context, first_of(self._split, self._batch_size))
        x = torch.cat([x for x, _ in batches])
        return x.repeat(-(-self._batch_size // len(x)), *[1] * (x.dim() - 1))[: self._batch_size]

    def __call__(self, trial: Trial) -> Metrics:
        model, sample = trial.model, self._sample
        timed = _on_gpu if sample.is_cuda else _on_host
        with aside(model, self.context.device, trial.seed), torch.inference_mode(), at_rest(model):
            for _ in range(self._warmup):
                model(sample.clone())
            taken = [timed(model, sample.clone()) for _ in range(self._repeats)]
        low, median, high = np.percentile(taken, [25, 50, 75]).tolist()
        return {"latency": median, "latency_spread": high - low}


def _on_host(call: Callable[[Tensor], object], x: Tensor) -> float:
    began = time.perf_counter()
    call(x)
    return 1e3 * (time.perf_counter() - began)


def _on_gpu(call: Callable[[Tensor], object], x: Tensor) -> float:
    """By the GPU's own clock, from when nothing else is queued."""
    torch.cuda.synchronize(x.device)
    events: Any = torch.cuda.Event
    began, ended = (events(enable_timing=True) for _ in range(2))
    began.record()
    call(x)
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended))
