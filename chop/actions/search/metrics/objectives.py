"""The objectives and constraints of a search, and its Pareto front."""

from __future__ import annotations

import contextlib
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
    """A metric, the direction that is better, and its factor."""

    name: str
    direction: Direction
    scale: float = 1.0


@dataclass(frozen=True)
class Constraint:
    """A bound of a metric, such as `average_bitwidth <= 6`."""

    metric: str
    sign: str
    bound: float

    @classmethod
    def parse(cls, text: str, where: str) -> Constraint:
        """Return the constraint that a text of a file describes."""
        match = CONSTRAINT.fullmatch(text) if isinstance(text, str) else None
        with contextlib.suppress(ValueError):
            if match is not None and not math.isnan(bound := float(match[3])):
                return cls(match[1], match[2], bound)
        raise ValueError(
            f"{where}: {text!r} is not a valid constraint; use for example "
            f"'average_bitwidth <= 6' (operators: {', '.join(SIGNS)})"
        )

    def violation(self, metrics: Mapping[str, float]) -> float:
        """Return how far a design exceeds the bound: above 0 if it violates the constraint."""
        beyond = (metrics[self.metric] - self.bound) * SIGNS[self.sign]
        return beyond + 1e-12 if beyond == 0 and self.sign in ("<", ">") else beyond

    def contradicts(self, other: Constraint) -> bool:
        """Return whether no number meets this upper bound and the other, lower bound."""
        if self.metric != other.metric or SIGNS[self.sign] < 0 or SIGNS[other.sign] > 0:
            return False
        strict = self.sign == "<" or other.sign == ">"
        return self.bound < other.bound or (strict and self.bound == other.bound)

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {self.bound:g}"


@dataclass(frozen=True)
class Objectives:
    """All objectives of a search in their order; if `summed`, their sum is the only objective."""

    members: tuple[Objective, ...]
    summed: Direction | None = None
    constraints: tuple[Constraint, ...] = ()
    honour_directions: bool = True  # in a sum, what should be small counts negatively

    @property
    def directions(self) -> tuple[Direction, ...]:
        return (self.summed,) if self.summed else tuple(g.direction for g in self.members)

    @property
    def metrics(self) -> list[str]:
        """The metrics of all objectives and constraints."""
        return [*(g.name for g in self.members), *(c.metric for c in self.constraints)]

    def scaled(self, metrics: Mapping[str, float]) -> dict[str, float]:
        return {g.name: metrics[g.name] * g.scale for g in self.members}

    def values(self, metrics: Mapping[str, float]) -> list[float]:
        """Return the objectives of a design; a metric that is not finite is refused."""
        for name in self.metrics:
            if not math.isfinite(metrics[name]):
                raise ValueError(f"the metric {name} is {metrics[name]}")
        if self.summed is None:
            return list(self.scaled(metrics).values())
        return [sum(self.weight(g) * metrics[g.name] for g in self.members)]

    def weight(self, objective: Objective) -> float:
        """Return the factor of a metric in the sum."""
        opposed = objective.direction != self.summed
        negative = self.honour_directions and opposed and objective.scale > 0
        return -objective.scale if negative else objective.scale

    def wants_more(self, objective: Objective) -> bool:
        """Return whether a greater metric is better, with the sign of its scale."""
        if self.summed is None:
            return (objective.direction == "maximize") == (objective.scale > 0)
        return (self.summed == "maximize") == (self.weight(objective) > 0)

    def violations(self, metrics: Mapping[str, float]) -> list[float]:
        return [constraint.violation(metrics) for constraint in self.constraints]

    def costs(self, values: Sequence[float]) -> tuple[float, ...]:
        """Return the objectives with the signs for which less is better."""
        pairs = zip(self.directions, values, strict=True)
        return tuple(-v if d == "maximize" else v for d, v in pairs)


Costs = tuple[float, ...]


def dominates(a: Costs, b: Costs) -> bool:
    """Return whether `a` is nowhere worse than `b`, and better somewhere."""
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


class Front:
    """The Pareto front of the trials so far; trials with equal costs stay together."""

    def __init__(self) -> None:
        self._trials: dict[Costs, list[int]] = {}
        self._points = np.empty((0, 0))  # the costs again, to compare with all of them at once

    def add(self, number: int, costs: Costs) -> bool:
        """Add a trial; return whether it is on the front."""
        if costs in self._trials:
            self._trials[costs].append(number)
            return True
        points, point = self._points.reshape(-1, len(costs)), np.array(costs)
        if (points <= point).all(axis=1).any():
            return False
        dominated = (points >= point).all(axis=1)
        for costs_of_dominated in points[dominated].tolist():
            del self._trials[tuple(costs_of_dominated)]
        self._points = np.concatenate([points[~dominated], point[None]])
        self._trials[costs] = [number]
        return True

    @property
    def costs(self) -> tuple[Costs, ...]:
        """The points of the front; trials with the same costs are one point."""
        return tuple(self._trials)

    @property
    def numbers(self) -> list[int]:
        """The trials on the front, in their order."""
        return sorted(number for numbers in self._trials.values() for number in numbers)
