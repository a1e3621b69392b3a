"""How a search went: the best so far, and the hypervolume so far."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from chop.actions.search.results.page.record import Objective, SearchRecord

__all__ = ["Curve", "best_so_far", "curves", "hypervolume_so_far"]

Point = tuple[int, float]  # trial number, value


@dataclass(frozen=True)
class Curve:
    """A staircase over trial numbers: only the steps, and where it ends."""

    title: str
    about: str
    points: list[Point]
    baseline: float | None = None


def curves(record: SearchRecord) -> list[Curve]:
    """One for each goal and, for two of them, the hypervolume."""
    counted = [
        (trial.number, record.metrics_of(trial))
        for trial in record.trials
        if trial.is_complete and trial.feasible
    ]
    base = record.baseline.metrics if record.baseline else {}
    made = []
    for goal in record.goals:
        points = ((number, metrics.get(goal.name)) for number, metrics in counted)
        about = "higher is better" if goal.direction == "maximize" else "lower is better"
        best = list(best_so_far(points, goal))
        made.append(Curve(goal.name, about, best, base.get(goal.name)))
    if len(record.goals) == 2:
        x, y = record.goals
        pairs = [(number, m.get(x.name), m.get(y.name)) for number, m in counted]
        about = "share of the box between the worst and the best values seen; higher is better"
        made.append(Curve("hypervolume", about, list(hypervolume_so_far(pairs, (x, y)))))
    return made


def best_so_far(values: Iterable[tuple[int, float | None]], goal: Objective) -> Iterator[Point]:
    """The trials that were better than all before them."""
    best: float | None = None
    for number, value in values:
        if value is not None and (best is None or goal.better(value, best)):
            best = value
            yield number, value


def hypervolume_so_far(
    pairs: Iterable[tuple[int, float | None, float | None]], goals: tuple[Objective, Objective]
) -> Iterator[Point]:
    """What the front dominates of the box that all pairs span, wherever it grows."""
    known = [(number, x, y) for number, x, y in pairs if x is not None and y is not None]
    if not known:
        return
    xs = _shares([x for _, x, _ in known], goals[0])
    ys = _shares([y for _, _, y in known], goals[1])
    front = _Front()
    before = None
    for (number, _, _), x, y in zip(known, xs, ys, strict=True):
        front.add(x, y)
        if front.area != before:
            before = front.area
            yield number, front.area


def _shares(values: list[float], goal: Objective) -> list[float]:
    """From 0, the worst seen, to 1, the best."""
    low, high = min(values), max(values)
    if low == high:
        return [1.0] * len(values)
    upwards = [(value - low) / (high - low) for value in values]
    return upwards if goal.direction == "maximize" else [1 - share for share in upwards]


@dataclass
class _Front:
    """Points of which none is better in both; x grows, so y falls."""

    xs: list[float] = field(default_factory=list)
    ys: list[float] = field(default_factory=list)
    area: float = 0.0

    def add(self, x: float, y: float) -> None:
        """Take in a point, and leave out what it dominates."""
        at = bisect.bisect_left(self.xs, x)
        if at < len(self.xs) and self.ys[at] >= y:
            return
        end = at + 1 if at < len(self.xs) and self.xs[at] == x else at
        start = at
        while start > 0 and self.ys[start - 1] <= y:
            start -= 1
        self.xs[start:end], self.ys[start:end] = [x], [y]
        edges = [0.0, *self.xs]
        self.area = sum((b - a) * h for a, b, h in zip(edges, self.xs, self.ys, strict=False))
