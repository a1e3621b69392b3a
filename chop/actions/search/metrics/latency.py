"""`latency`: the time of a forward pass on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch

from chop.actions.search.metrics.base import Metrics, Runner, RunnerContext, Trial, register_runner
from chop.actions.search.metrics.samples import any_split, first_of, on_device
from chop.actions.search.metrics.state import isolated
from chop.dataset.matching import ModelCall
from chop.dataset.nested import Inputs, copied, joined, num_samples, rows_of, tensors_of
from chop.numerics import frozen_weights
from chop.options import NonNegativeInt, PositiveInt


@register_runner("latency", "hardware", latency="minimize", latency_spread="minimize")
class Latency(Runner):
    """Milliseconds of a forward pass: the median, and the interquartile range.

    `warmup` calls precede the `repeats` that are measured. This machine simulates the formats, so
    hardware that has them will differ.
    """

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
    def _sample(self) -> Inputs:
        """One batch; samples of a smaller split are repeated."""
        batches = on_device(self.context, first_of(self._split, self._batch_size))
        x = joined([x for x, _ in batches])
        return rows_of(x, [i % num_samples(x) for i in range(self._batch_size)])

    def __call__(self, trial: Trial) -> Metrics:
        model, sample, device = trial.model, self._sample, self.context.device
        call = ModelCall(model)
        timed = _on_gpu if device.type == "cuda" else _on_host
        with isolated(model, device, trial.seed), torch.inference_mode(), frozen_weights(model):
            for _ in range(self._warmup):
                call(copied(sample))
            times = [timed(call, copied(sample)) for _ in range(self._repeats)]
        low, median, high = np.percentile(times, [25, 50, 75]).tolist()
        return {"latency": median, "latency_spread": high - low}


def _on_host(call: Callable[[Inputs], object], x: Inputs) -> float:
    began = time.perf_counter()
    call(x)
    return 1e3 * (time.perf_counter() - began)


def _on_gpu(call: Callable[[Inputs], object], x: Inputs) -> float:
    """Return the time by the GPU's clock, starting from an empty queue."""
    torch.cuda.synchronize(tensors_of(x)[0].device)
    events: Any = torch.cuda.Event
    began, ended = (events(enable_timing=True) for _ in range(2))
    began.record()
    call(x)
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended))
