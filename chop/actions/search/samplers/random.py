"""Designs drawn at random, each by a seed of its own."""

from __future__ import annotations

import math
from random import Random

from chop.actions.search.samplers.base import Chosen, Strategy, register_strategy
from chop.actions.search.space.choices import EXACT


@register_strategy("random")
class AtRandom(Strategy):
    """Every value of every key is as likely as any other."""

    looks_back = False

    def ask(self, number: int) -> Chosen | None:
        # of a text: all of its characters count, and it is quicker than NumPy's generators
        return self.context.choices.suggest(_Dice(Random(f"{self.context.seed} {number}")))


class _Dice:
    """Suggests numbers without looking at anything."""

    def __init__(self, generator: Random) -> None:
        self._random, self._below = generator.random, generator.randrange

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        if log:
            drawn = round(self.suggest_float(name, low - 0.5, high + 0.5, log=True))
            return min(max(drawn, low), high)
        count = (high - low) // step + 1
        if count > EXACT:  # a float has too few digits for all of them
            return low + step * self._below(count)
        return low + step * int(self._random() * count)

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        if log:
            return math.exp(self.suggest_float(name, math.log(low), math.log(high)))
        if step is not None:
            return low + step * int(self._random() * (math.floor((high - low) / step) + 1))
        return low + (high - low) * float(self._random())
