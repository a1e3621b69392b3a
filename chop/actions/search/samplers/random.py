"""Random designs, each drawn with its own seed."""

from __future__ import annotations

import math
from random import Random

from chop.actions.search.samplers.base import Chosen, Strategy, register_strategy
from chop.actions.search.space.choices import EXACT


@register_strategy("random")
class RandomStrategy(Strategy):
    """Uniformly random values of every key."""

    looks_back = False

    def ask(self, number: int) -> Chosen | None:
        if number < len(self.context.uniform):
            return self.context.uniform[number]
        # seeded with a text, all of which counts; faster than NumPy's generators
        return self.context.choices.suggest(_RandomSuggester(f"{self.context.seed} {number}"))


class _RandomSuggester(Random):
    """Suggests uniformly random numbers."""

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        if log:
            drawn = round(self.suggest_float(name, low - 0.5, high + 0.5, log=True))
            return min(max(drawn, low), high)
        count = (high - low) // step + 1
        if count > EXACT:  # a float has too few digits for all of them
            return low + step * self.randrange(count)
        return low + step * int(self.random() * count)

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        if log:
            return math.exp(self.suggest_float(name, math.log(low), math.log(high)))
        if step is not None:
            return low + step * int(self.random() * (math.floor((high - low) / step) + 1))
        return low + (high - low) * float(self.random())
