"""The objectives and constraints of a search, and its Pareto front."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chop.actions.search.metrics.base import Direction

SIGNS = {"<=": 1.0, "<": 1.0, ">=": -1.0, ">": -1.0}
CONSTRAINT = re.compile(r"\s*([\w-]+)\s*(<=|>=|<|>)\s*([-+\w.]+)\s*")


@dataclass(frozen=True)
class Objective:
    """A metric with the factor by which it counts, and which way is better."""

    name: str
    direction: Direction
    scale: float = 1.0


@dataclass(frozen=True)
class Constraint:
    """`average_bitwidth <= 6`: how far a design is beyond, negative if it is not."""

    metric: str
    sign: str
    bound: float

    @classmethod
    def parse(cls, text: str, where: str) -> Constraint:
        """From a sentence of the file."""
        found = CONSTRAINT.fullmatch(text) if isinstance(text, str) else None
        try:
            metric, sign, bound = found.groups() if found else ("", "", "nan")
            if math.isnan(float(bound)):
                raise ValueError
            return cls(metric, sign, float(bound))
        except ValueError:
            raise ValueError(
                f"{where}: {text!r} is not a valid constraint; use for example "
                f"'average_bitwidth <= 6' (operators: {', '.join(SIGNS)})"
            ) from None

    def violation(self, metrics: Mapping[str, float]) -> float:
        """Above 0 where the constraint is broken; strict signs count equality as broken."""
        beyond = (metrics[self.metric] - self.bound) * SIGNS[self.sign]
        return beyond + 1e-12 if beyond == 0 and self.sign in ("<", ">") else beyond

    def contradicts(self, other: Constraint) -> bool:
        """Whether no number whatever meets both: this one from above, and the other from below."""
        if self.metric != other.metric or SIGNS[self.sign] < 0 or SIGNS[other.sign] > 0:
            return False
        strict = self.sign == "<" or other.sign == ">"
        return self.bound < other.bound or (strict and self.bound == other.bound)

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {self.bound:g}"


@dataclass(frozen=True)
class Objectives:
    """All objectives of a search in their order; `summed`, they are one."""

    members: tuple[Objective, ...]
    summed: Direction | None = None
    constraints: tuple[Constraint, ...] = ()
    honour_directions: bool = True  # in a sum, what should be small counts negatively

    @property
    def directions(self) -> tuple[Direction, ...]:
        return (self.summed,) if self.summed else tuple(g.direction for g in self.members)

    @property
    def metrics(self) -> list[str]:
        """All metrics that somebody has to produce."""
        return [*(g.name for g in self.members), *(c.metric for c in self.constraints)]

    def scaled(self, metrics: Mapping[str, float]) -> dict[str, float]:
        return {g.name: metrics[g.name] * g.scale for g in self.members}

    def values(self, metrics: Mapping[str, float]) -> list[float]:
        """The objectives of a design; a metric that is no number is refused by its name."""
        for name in self.metrics:
            if not math.isfinite(metrics[name]):
                raise ValueError(f"the metric {name} is {metrics[name]}")
        if self.summed is None:
            return list(self.scaled(metrics).values())
        return [sum(self.weight(g) * metrics[g.name] for g in self.members)]

    def weight(self, objective: Objective) -> float:
        """What a metric counts in the sum."""
        opposed = objective.direction != self.summed
        negative = self.honour_directions and opposed and objective.scale > 0
        return -objective.scale if negative else objective.scale

    def wants_more(self, objective: Objective) -> bool:
        """Whether a greater metric is better, be its scale negative or not."""
        if self.summed is None:
            return (objective.direction == "maximize") == (objective.scale > 0)
        return (self.summed == "maximize") == (self.weight(objective) > 0)

    def violations(self, metrics: Mapping[str, float]) -> list[float]:
        return [constraint.violation(metrics) for constraint in self.constraints]

    def costs(self, values: Sequence[float]) -> tuple[float, ...]:
        """Objectives of which less is better."""
        pairs = zip(self.directions, values, strict=True)
        return tuple(-v if d == "maximize" else v for d, v in pairs)


Costs = tuple[float, ...]


def dominates(a: Costs, b: Costs) -> bool:
    """Whether `a` is nowhere worse than `b`, and better somewhere."""
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


class Front:
    """The trials that none of those seen beats; equal ones stay together."""

    def __init__(self) -> None:
        self._trials: dict[Costs, list[int]] = {}
        self._points = np.empty((0, 0))  # the costs again, to compare with all of them at once

    def add(self, number: int, costs: Costs) -> bool:
        """Whether the trial is on the front now."""
        if costs in self._trials:
            self._trials[costs].append(number)
            return True
        points, point = self._points.reshape(-1, len(costs)), np.array(costs)
        if (points <= point).all(axis=1).any():
            return False
        beaten = (points >= point).all(axis=1)
        for gone in points[beaten].tolist():
            del self._trials[tuple(gone)]
        self._points = np.concatenate([points[~beaten], point[None]])
        self._trials[costs] = [number]
        return True

    @property
    def costs(self) -> tuple[Costs, ...]:
        """Where the front is; trials with the same costs are one point of it."""
        return tuple(self._trials)

    @property
    def numbers(self) -> list[int]:
        """The trials on the front, in their order."""
        return sorted(number for numbers in self._trials.values() for number in numbers)
