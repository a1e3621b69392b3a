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
    """Keeps the designs that no other dominates in the main metric and the cost."""

    def __init__(self, metric: str, direction: Direction) -> None:
        self.metric, self.sign = metric, 1 if direction == "maximize" else -1
        self.designs: list[LearnedDesign] = []

    def score(self, design: LearnedDesign) -> float:
        """Return the main metric, so that more is better."""
        return self.sign * design.metrics[self.metric]

    def admits(self, metrics: Mapping[str, float], cost: float) -> bool:
        """Whether no design is as good and costs no more."""
        score = self.sign * metrics[self.metric]
        return not any(d.cost <= cost and self.score(d) >= score for d in self.designs)

    def add(self, design: LearnedDesign) -> None:
        """Add a design that is admitted, in place of those that it dominates."""
        if not self.admits(design.metrics, design.cost):
            return
        score = self.score(design)
        kept = [d for d in self.designs if d.cost < design.cost or self.score(d) > score]
        self.designs = sorted([*kept, design], key=lambda each: each.cost)

    def replace(self, designs: Iterable[LearnedDesign]) -> None:
        """Keep those of `designs` that no other dominates."""
        self.designs = []
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
