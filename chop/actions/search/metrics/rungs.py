"""Rungs of successive halving: the scores of trials at each, and which trials continue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from chop.actions.search.metrics.base import RungScore, Stopped
from chop.actions.search.metrics.objectives import Costs

HALF = 0.5
BLOCK = 256  # points that are compared with all others at once


@dataclass(frozen=True)
class KnownTrials:
    """What a trial may compare itself with: the trials told before it was asked for."""

    front: tuple[Costs, ...] = ()
    rung_scores: Mapping[int, tuple[RungScore, ...]] = field(default_factory=dict)  # by rung


@dataclass(frozen=True)
class Rungs:
    """Epochs after which only a share goes on."""

    epochs: tuple[int, ...] = ()
    keep: float = HALF

    @staticmethod
    def of(who: str, epochs: Sequence[int] | None, keep: float | None, max_epochs: int) -> Rungs:
        """The rungs of a runner; those in disorder, and those that decide nothing, are refused."""
        epochs = tuple(epochs or ())
        if list(epochs) != sorted(set(epochs)):
            raise ValueError(f"{who}: rungs must be epochs in increasing order, not {list(epochs)}")
        if epochs and epochs[-1] >= max_epochs:
            raise ValueError(
                f"{who}: after the rung {epochs[-1]} there is nothing left to train, as the budget "
                f"ends in epoch {max_epochs}; lower the rung or raise the budget"
            )
        if keep is not None and not epochs:
            raise ValueError(
                f"{who}: keep = {keep:g} is the share that continues after a rung, but there are "
                f"no rungs; set rungs, as in rungs = [1], or omit keep"
            )
        return Rungs(epochs, HALF if keep is None else keep)

    @property
    def least(self) -> int:
        """How many others have to be known at a rung before anybody is stopped there."""
        return math.ceil(1 / self.keep)

    def best(self, scores: Sequence[RungScore]) -> list[int]:
        """The indices of the scores whose trials continue."""
        return ranked(scores)[: math.ceil(self.keep * len(scores))]

    def goes_on(self, mine: RungScore, others: Sequence[RungScore]) -> bool:
        """Whether a trial is among the best of those that have come so far."""
        return len(others) < self.least or len(others) in self.best([*others, mine])


def left_at(rung: int) -> Stopped:
    """What becomes of a trial that does not go on."""
    return Stopped(f"left at the rung after epoch {rung}")


def ranked(scores: Sequence[RungScore]) -> list[int]:
    """The indices of the scores, best first: the least dominated, then the lowest loss."""
    beaten = _beaten([score.costs for score in scores])

    def key(place: int) -> tuple[bool, int, float, int]:
        loss = scores[place].loss
        finite = math.isfinite(loss)
        return not finite, beaten[place], loss if finite else 0.0, place

    return sorted(range(len(scores)), key=key)


def _beaten(costs: Sequence[Costs | None]) -> list[int]:
    """How many of the others dominate each; costs that are not known neither win nor lose."""
    known = [place for place, mine in enumerate(costs) if mine is not None]
    points, counts = np.array([costs[place] for place in known]), [0] * len(costs)
    for start in range(0, len(known), BLOCK):
        mine = points[start : start + BLOCK, None]
        beaten = ((points <= mine).all(axis=2) & (points < mine).any(axis=2)).sum(axis=1)
        for place, count in zip(known[start : start + BLOCK], beaten.tolist(), strict=True):
            counts[place] = count
    return counts
