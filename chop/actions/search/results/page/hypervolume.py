"""The hypervolume of fronts in any number of goals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Shares = tuple[float, ...]  # of each goal: 0 for the worst value, 1 for the best


def dominates(one: Shares, other: Shares) -> bool:
    """Return whether `one` is at least as good everywhere and better somewhere."""
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))


def front_of(points: Iterable[Shares]) -> list[Shares]:
    """Return the points that none dominates, the largest first; of equal ones, one."""
    front: list[Shares] = []
    for point in sorted(set(points), reverse=True):
        if not any(dominates(member, point) for member in front):
            front.append(point)
    return front


def hypervolume(points: Sequence[Shares]) -> float:
    """Return the volume that points dominate, from the origin on; it is 1 for the best corner."""
    if not points:
        return 0.0
    if len(points[0]) == 1:
        return max(point[0] for point in points)
    volume, slab = 0.0, list[Shares]()
    ordered = sorted(front_of(points), key=lambda point: -point[-1])
    edges = [point[-1] for point in ordered[1:]] + [0.0]
    for point, below in zip(ordered, edges, strict=True):
        slab = front_of([*slab, point[:-1]])
        if point[-1] > below:
            volume += (point[-1] - below) * hypervolume(slab)
    return volume
