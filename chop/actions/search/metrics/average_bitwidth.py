"""`average_bitwidth`: the bit width of the weights."""

from __future__ import annotations

from chop.actions.search.metrics.base import Metrics, Runner, RunnerContext, Trial, register_runner
from chop.actions.search.metrics.costs import costs_of
from chop.options import PositiveFloat


@register_runner(
    "average_bitwidth", "hardware", average_bitwidth="minimize", memory_density="maximize"
)
class AverageBitwidth(Runner):
    """Bits per weight of the linear and convolution layers, and the memory density.

    A layer in float counts with `compare_to` bits; `memory_density` is `compare_to` / average.
    """

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
