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
    """The results that a trial is compared with: those that its sampler knew."""

    front: tuple[Costs, ...] = ()
    rung_scores: Mapping[int, tuple[RungScore, ...]] = field(default_factory=dict)  # by rung


@dataclass(frozen=True)
class Rungs:
    """Epochs after which only the share `keep` of the trials continues."""

    epochs: tuple[int, ...] = ()
    keep: float = HALF

    @staticmethod
    def of(who: str, epochs: Sequence[int] | None, keep: float | None, max_epochs: int) -> Rungs:
        """Return the rungs of a runner; unsorted rungs and rungs without effect are refused."""
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

    def best(self, scores: Sequence[RungScore]) -> list[int]:
        """Return the indices of the trials that continue."""
        return ranked(scores)[: math.ceil(self.keep * len(scores))]

    def goes_on(self, score: RungScore, others: Sequence[RungScore]) -> bool:
        """Return whether a trial is among the best so far; the first ones always are."""
        few = len(others) < math.ceil(1 / self.keep)
        return few or len(others) in self.best([*others, score])


def left_at(rung: int) -> Stopped:
    """Return the exception that ends a trial which does not continue after a rung."""
    return Stopped(f"left at the rung after epoch {rung}")


def ranked(scores: Sequence[RungScore]) -> list[int]:
    """Return the indices of the scores, best first: least dominated, then lowest loss."""
    dominating = _dominating([score.costs for score in scores])

    def key(index: int) -> tuple[bool, int, float, int]:
        loss = scores[index].loss
        finite = math.isfinite(loss)
        return not finite, dominating[index], loss if finite else 0.0, index

    return sorted(range(len(scores)), key=key)


def _dominating(costs: Sequence[Costs | None]) -> list[int]:
    """Return how many others dominate each; unknown costs are never compared."""
    known = [index for index, cost in enumerate(costs) if cost is not None]
    points, counts = np.array([costs[index] for index in known]), [0] * len(costs)
    for start in range(0, len(known), BLOCK):
        block = points[start : start + BLOCK, None]
        sums = ((points <= block).all(axis=2) & (points < block).any(axis=2)).sum(axis=1)
        for index, count in zip(known[start : start + BLOCK], sums.tolist(), strict=True):
            counts[index] = count
    return counts
