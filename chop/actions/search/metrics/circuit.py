"""Costs of the circuit of a design: `lut`, `ff`, `adder_bits`, `ebops`, `latency_cycles`, …"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import fx

from chop.actions.search.metrics.base import Metrics, Runner, RunnerContext, Trial, register_runner
from chop.hardware.emit import EmitOptions
from chop.hardware.estimate import CLOCK_PERIOD, Fidelity, estimate
from chop.options import PositiveFloat, PositiveInt
from chop.passes.base import PassArgsError
from chop.passes.graph.analysis.cost.circuit import circuit_cost
from chop.passes.graph.transforms.integers import integer_graph


class CircuitRunner(Runner):
    """A number of the unrolled circuit of a design, estimated from its integer graph."""

    needs_graph: ClassVar[bool] = True
    reads_weights: ClassVar[bool] = True

    def __init__(
        self,
        context: RunnerContext,
        *,
        fidelity: Fidelity = "formula",
        clock_period: PositiveFloat = CLOCK_PERIOD,
        max_adders: PositiveInt = EmitOptions.max_adders,
    ) -> None:
        super().__init__(context)
        self._how = (fidelity, clock_period, max_adders)

    def __call__(self, trial: Trial) -> Metrics:
        return {self.name: circuit_of(trial, *self._how)[self.name]}

    def check(self, trial: Trial) -> None:
        circuit_of(trial, "formula", self._how[1])

    def parent_metrics(self, trial: Trial) -> Metrics:
        """Return nothing for a parent that has no circuit, as one in float."""
        try:
            return self(trial)
        except PassArgsError:
            return {}


def circuit_of(
    trial: Trial, fidelity: Fidelity, period: float, max_adders: int = EmitOptions.max_adders
) -> Metrics:
    """Return the costs of a design's circuit; all runners share one calculation."""
    known: dict[Any, Metrics] = vars(trial).setdefault("_circuits", {})
    how = (fidelity, period, max_adders)
    key = (*how, trial.trained)
    if key not in known:
        known[key] = _estimated(trial, *how)
    return known[key]


def _estimated(trial: Trial, fidelity: Fidelity, period: float, max_adders: int) -> Metrics:
    # what is kept of a network is for weights that stay
    if fidelity != "formula" or trial.trained or not isinstance(trial.model, fx.GraphModule):
        integers = integer_graph(trial.graph)
        how = {"clock_period": period, "max_adders": max_adders}
        return estimate(integers, fidelity=fidelity, **how).metrics  # type: ignore[arg-type]
    return circuit_cost(trial.model, period, lambda: integer_graph(trial.graph))


@register_runner("lut", "hardware", lut="minimize")
class CircuitLuts(CircuitRunner):
    """LUTs with six inputs, two smaller functions in one, of the unrolled circuit of a design.

    `fidelity` is "formula", from widths and the digits of weights, or "adders", from the adders
    that alkaid finds, which takes seconds; `clock_period` is in ns. Designs of more than about
    `max_adders` adders are refused if these are to be found.
    """


@register_runner("ff", "hardware", ff="minimize")
class CircuitFlipFlops(CircuitRunner):
    """Flip-flops of the unrolled circuit of a design; options as for `lut`."""


@register_runner("adder_bits", "hardware", adder_bits="minimize")
class CircuitAdderBits(CircuitRunner):
    """Bits of all adders of the unrolled circuit of a design; options as for `lut`."""


@register_runner("ebops", "hardware", ebops="minimize")
class CircuitEbops(CircuitRunner):
    """Effective bit operations: bits of inputs times bits of weights, over all products.

    The bits of a weight are those of its code from the first to the last one, so zero has none. The
    bits of biases are added. Options as for `lut`.
    """


@register_runner("latency_cycles", "hardware", latency_cycles="minimize")
class CircuitCycles(CircuitRunner):
    """Clock cycles from an input of the unrolled circuit to its result; options as for `lut`."""


@register_runner("latency_ns", "hardware", latency_ns="minimize")
class CircuitLatency(CircuitRunner):
    """Nanoseconds from an input of the unrolled circuit to its result; options as for `lut`."""
