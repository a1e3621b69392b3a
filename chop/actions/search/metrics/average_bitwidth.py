"""`average_bitwidth`: the bit width of parameters and buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from chop.actions.search.metrics.base import Metrics, Runner, RunnerContext, Trial, register_runner
from chop.actions.search.metrics.costs import costs_of
from chop.options import PositiveFloat


@register_runner(
    "average_bitwidth", "hardware", average_bitwidth="minimize", memory_density="maximize"
)
class AverageBitwidth(Runner):
    """Bits per number of all parameters and buffers, and the memory density.

    A number in float counts with `compare_to` bits (32 unless given); `memory_density` is
    `compare_to` / average. `count` is "all", or "weights" for the weights of layers alone, without
    biases, norms and buffers: the labs' definition, which also holds if `compare_to` is given.
    """

    def __init__(
        self,
        context: RunnerContext,
        *,
        compare_to: PositiveFloat | None = None,
        count: Literal["all", "weights"] | None = None,
    ) -> None:
        super().__init__(context)
        self._compare_to = 32 if compare_to is None else compare_to
        self._count = count or self.dependent_defaults({"compare_to": compare_to})["count"]

    @classmethod
    def dependent_defaults(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"count": "all" if options.get("compare_to") is None else "weights"}

    def __call__(self, trial: Trial) -> Metrics:
        numbers = costs_of(trial)
        bits = elements = 0.0
        for width, number in numbers.tensors if self._count == "all" else numbers.weights:
            bits += (self._compare_to if width is None else width) * number
            elements += number
        average = bits / elements if elements else float(self._compare_to)
        return {"average_bitwidth": average, "memory_density": self._compare_to / average}
