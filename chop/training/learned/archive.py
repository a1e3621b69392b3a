"""Designs of a run that no other dominates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from chop.training.tasks import Direction


@dataclass(frozen=True)
class LearnedDesign:
    """A network at a step of a run: its price, exact cost and validation metrics."""

    member: int
    step: int
    phase: int  # 0, or the number of its group when designs were retrained
    price: float
    cost: float
    metrics: dict[str, float]
    state: dict[str, Tensor] = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return f"{self.phase}-{self.step}-{self.member}"

    @property
    def facts(self) -> dict[str, Any]:
        """All but its weights."""
        names = ("member", "step", "phase", "price", "cost", "metrics")
        return {name: getattr(self, name) for name in names}


class Archive:
    """Keeps the designs that no other dominates in the main metric and the cost.

    With `per_doubling` it keeps the best design of each interval of costs instead, so many whenever
    the cost doubles: scores in the course of a run say little about those after retraining, when
    `replace` leaves the front.
    """

    def __init__(self, metric: str, direction: Direction, *, per_doubling: int = 0) -> None:
        self.metric, self.sign = metric, 1 if direction == "maximize" else -1
        self.per_doubling = per_doubling
        self.designs: list[LearnedDesign] = []

    def score(self, design: LearnedDesign) -> float:
        """Return the main metric, so that more is better."""
        return self.sign * design.metrics[self.metric]

    def admits(self, metrics: Mapping[str, float], cost: float) -> bool:
        """Whether no design takes the place of one with such metrics and such a cost."""
        score = self.sign * metrics[self.metric]
        return not any(self._beats((self.score(d), d.cost), (score, cost)) for d in self.designs)

    def add(self, design: LearnedDesign) -> None:
        """Add a design that is admitted, in place of those that it beats."""
        if not self.admits(design.metrics, design.cost):
            return
        new = (self.score(design), design.cost)
        kept = [d for d in self.designs if not self._beats(new, (self.score(d), d.cost))]
        self.designs = sorted([*kept, design], key=lambda each: each.cost)

    def _beats(self, one: tuple[float, float], other: tuple[float, float]) -> bool:
        """Whether a score and a cost make another pair superfluous; of equals the first does."""
        (score, cost), (its_score, its_cost) = one, other
        if not self.per_doubling:
            return cost <= its_cost and score >= its_score
        if self._interval(cost) != self._interval(its_cost):
            return False
        return (score, -cost) >= (its_score, -its_cost)

    def _interval(self, cost: float) -> int:
        return math.floor(self.per_doubling * math.log2(max(cost, 1e-9)))

    def replace(self, designs: Iterable[LearnedDesign]) -> None:
        """Keep those of `designs` that no other dominates."""
        self.designs, self.per_doubling = [], 0
        for design in designs:
            self.add(design)


def spread(designs: Sequence[LearnedDesign], most: int | None) -> list[LearnedDesign]:
    """Return at most so many designs, evenly spread over the logarithm of their costs."""
    if most is None or len(designs) <= most:
        return list(designs)
    if most == 1:
        return [designs[-1]]
    logs = [math.log(max(design.cost, 1e-9)) for design in designs]
    chosen: list[int] = []
    for k in range(most):  # leave enough designs for the places after this one
        place = logs[0] + (logs[-1] - logs[0]) * k / (most - 1)
        first = chosen[-1] + 1 if chosen else 0
        last = len(designs) - (most - k)
        chosen.append(min(range(first, last + 1), key=lambda i: abs(logs[i] - place)))
    return [designs[i] for i in chosen]
