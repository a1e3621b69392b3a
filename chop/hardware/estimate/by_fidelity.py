"""The cost of a circuit before there is one."""

from __future__ import annotations

import math
from typing import get_args

from chop.hardware.emit import EmitOptions
from chop.hardware.estimate.cost import CLOCK_PERIOD, Estimate, Fidelity
from chop.hardware.estimate.walk import by_formula
from chop.integers import IntegerGraph

__all__ = ["check_period", "estimate"]


def estimate(
    graph: IntegerGraph,
    *,
    fidelity: Fidelity = "adders",
    clock_period: float = CLOCK_PERIOD,
    max_adders: int = EmitOptions.max_adders,
) -> Estimate:
    """Return the expected cost of the unrolled circuit of a graph.

    "formula" takes microseconds; "adders" needs alkaid, which finds the adders of each layer. These
    are kept on disk for layers of equal content. Networks of more than about `max_adders` adders
    are then refused, as by `ch emit`.
    """
    check_period(clock_period)
    if fidelity == "formula":
        return by_formula(graph, clock_period)
    if fidelity == "adders":
        from chop.hardware.estimate.adders import by_adders

        return by_adders(graph, clock_period, max_adders)
    choices = " or ".join(map(repr, get_args(Fidelity)))
    raise ValueError(f"fidelity must be {choices}, not {fidelity!r}")


def check_period(clock_period: float) -> None:
    """Refuse a clock period that is not a positive number."""
    if not (math.isfinite(clock_period) and clock_period > 0):
        raise ValueError(f"the clock period must be a positive number of ns, not {clock_period!r}")
