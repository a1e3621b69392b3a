"""What a circuit costs: layer by layer, and in total."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from tabulate import tabulate

from chop.hardware.emit import EmitOptions

__all__ = ["CLOCK_PERIOD", "Cost", "Estimate", "Fidelity", "metrics_of"]

Fidelity = Literal["formula", "adders"]
CLOCK_PERIOD = EmitOptions.clock  # ns


class Cost(NamedTuple):
    """What a part of a circuit costs.

    `ebops` are bits of inputs times bits of weights, over all products; `adder_bits` the bits of
    all adders; `lut` counts LUTs with six inputs, where two smaller functions share one; `ff`
    counts flip-flops.
    """

    ebops: int = 0
    adder_bits: float = 0.0
    lut: float = 0.0
    ff: float = 0.0

    def plus(self, other: Cost) -> Cost:
        """Return the cost of both."""
        return Cost(
            self.ebops + other.ebops,
            self.adder_bits + other.adder_bits,
            self.lut + other.lut,
            self.ff + other.ff,
        )


def metrics_of(total: Cost, cycles: int, clock_period: float) -> dict[str, float]:
    """Return all numbers of a circuit by the names of the metrics of a search."""
    return {
        **dict(zip(Cost._fields, map(float, total), strict=True)),
        "latency_cycles": float(cycles),
        "latency_ns": cycles * clock_period,
    }


@dataclass(frozen=True)
class Estimate:
    """The expected cost of an unrolled circuit, in total and by layer."""

    layers: Mapping[str, Cost]
    latency_cycles: int
    clock_period: float  # ns
    fidelity: Fidelity

    @property
    def total(self) -> Cost:
        total = Cost()
        for cost in self.layers.values():
            total = total.plus(cost)
        return total

    @property
    def ebops(self) -> int:
        return self.total.ebops

    @property
    def adder_bits(self) -> float:
        return self.total.adder_bits

    @property
    def lut(self) -> float:
        return self.total.lut

    @property
    def ff(self) -> float:
        return self.total.ff

    @property
    def latency_ns(self) -> float:
        return self.latency_cycles * self.clock_period

    @property
    def metrics(self) -> dict[str, float]:
        """All numbers by the names of the metrics of a search."""
        return metrics_of(self.total, self.latency_cycles, self.clock_period)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the report: one per layer, and the total."""
        named = [*self.layers.items(), ("total", self.total)]
        return [
            {"Layer": name, **{key: math.ceil(value) for key, value in cost._asdict().items()}}
            for name, cost in named
        ]

    def report(self) -> str:
        """Return a table of all layers."""
        table = tabulate(self.rows(), headers="keys", intfmt=",")
        cycles = "cycle" if self.latency_cycles == 1 else "cycles"
        latency = f"latency: {self.latency_cycles} {cycles}, {self.latency_ns:g} ns"
        return f"{table}\n{latency}"

    def __str__(self) -> str:
        return self.report()
