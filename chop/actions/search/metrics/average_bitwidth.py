"""`average_bitwidth`: how wide the weights are."""

from __future__ import annotations

from collections.abc import Mapping

from chop.actions.search.metrics.base import (
    Direction,
    Metrics,
    Runner,
    RunnerContext,
    Trial,
    register_runner,
)
from chop.actions.search.metrics.costs import costs_of
from chop.options import PositiveFloat


@register_runner("average_bitwidth", "hardware")
class AverageBitwidth(Runner):
    """Bits per weight of the linear and convolution layers, and how much denser memory is for it.

    A layer in float counts with `compare_to` bits; `memory_density` is `compare_to` over the
    average.
    """

    metrics: Mapping[str, Direction] = {
        "average_bitwidth": "minimize",
        "memory_density": "maximize",
    }

    def __init__(self, context: RunnerContext, *, compare_to: PositiveFloat = 32) -> None:
        super().__init__(context)
        self._compare_to = compare_to

    def __call__(self, trial: Trial) -> Metrics:
        bits = elements = 0.0
        for width, number in costs_of(trial).weights:
            bits += (self._compare_to if width is None else width) * number
            elements += number
        average = bits / elements if elements else float(self._compare_to)
        return {"average_bitwidth": average, "memory_density": self._compare_to / average}
