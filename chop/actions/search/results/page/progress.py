"""The best value and the hypervolume of a search after each trial."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from chop.actions.search.results.page.record import Objective, SearchRecord

Point = tuple[int, float]  # trial number, value


@dataclass(frozen=True)
class Curve:
    """A step function of the trial number, by its steps."""

    title: str
    about: str
    points: list[Point]
    baseline: float | None = None


def curves(record: SearchRecord) -> list[Curve]:
    """Return one curve for each goal and, if there are two, one of the hypervolume."""
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
    """Yield the trials that were better than all earlier ones, with their values."""
    best: float | None = None
    for number, value in values:
        if value is not None and (best is None or goal.better(value, best)):
            best = value
            yield number, value


def hypervolume_so_far(
    pairs: Iterable[tuple[int, float | None, float | None]], goals: tuple[Objective, Objective]
) -> Iterator[Point]:
    """Yield the share of the box around all pairs that the front dominates, when it grows."""
    known = [(number, x, y) for number, x, y in pairs if x is not None and y is not None]
    if not known:
        return
    numbers, *values = zip(*known, strict=True)
    xs, ys = map(_shares, values, goals)
    front, area = _Front(), None
    for number, x, y in zip(numbers, xs, ys, strict=True):
        front.add(x, y)
        if front.area != area:
            area = front.area
            yield number, area


def _shares(values: Sequence[float], goal: Objective) -> list[float]:
    """Return values scaled from 0, the worst of them, to 1, the best."""
    low, high = min(values), max(values)
    if low == high:
        return [1.0] * len(values)
    upwards = [(value - low) / (high - low) for value in values]
    return upwards if goal.direction == "maximize" else [1 - share for share in upwards]


@dataclass
class _Front:
    """A Pareto front of points, x ascending and y descending, and the area below it."""

    xs: list[float] = field(default_factory=list)
    ys: list[float] = field(default_factory=list)
    area: float = 0.0

    def add(self, x: float, y: float) -> None:
        """Add a point unless it is dominated, and remove the points that it dominates."""
        start = bisect.bisect_left(self.xs, x)
        if start < len(self.xs) and self.ys[start] >= y:
            return
        end = bisect.bisect_right(self.xs, x)
        while start > 0 and self.ys[start - 1] <= y:
            start -= 1
        self.xs[start:end], self.ys[start:end] = [x], [y]
        edges = [0.0, *self.xs]
        self.area = sum((b - a) * h for a, b, h in zip(edges, self.xs, self.ys, strict=False))
