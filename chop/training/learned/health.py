"""Networks that die in training: found, restarted from a neighbour, and counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from chop.training.scores import Score

MARGIN = 0.01  # of the way from a constant guess to a perfect score: no better is dead


@dataclass
class Health:
    """What happened to each network; a network that was never better than a guess is not dead."""

    count: int
    seen: list[bool] = field(default_factory=list)  # whether it was ever better than a guess
    restarts: list[int] = field(default_factory=list)
    alive: list[bool] = field(default_factory=list)  # at the last checkpoint

    def __post_init__(self) -> None:
        self.seen = self.seen or [False] * self.count
        self.restarts = self.restarts or [0] * self.count
        self.alive = self.alive or [True] * self.count

    def look(self, scores: Sequence[Score], metric: str, finite: Sequence[bool]) -> list[int]:
        """Take the scores of all networks; return those that have died."""
        self.alive = [
            ok and is_alive(score, metric) for score, ok in zip(scores, finite, strict=True)
        ]
        dead = [
            k for k, alive in enumerate(self.alive) if not alive and (self.seen[k] or not finite[k])
        ]
        self.seen = [seen or alive for seen, alive in zip(self.seen, self.alive, strict=True)]
        return dead

    def donor(self, dead: int) -> int | None:
        """Return the nearest living network, of two the one with the lower price."""
        living = [k for k, alive in enumerate(self.alive) if alive]
        return min(living, key=lambda k: (abs(k - dead), k), default=None)

    @property
    def facts(self) -> dict[str, Any]:
        return {"seen": self.seen, "restarts": self.restarts, "alive": self.alive}


def is_alive(score: Score, metric: str) -> bool:
    """Whether a network is better than the best constant guess."""
    value = score.metrics[metric]
    if not (math.isfinite(value) and math.isfinite(score.loss)):
        return False
    return not value <= score.guess + MARGIN * (1 - score.guess)
