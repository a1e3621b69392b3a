"""Designs drawn at random, each by a seed of its own."""

from __future__ import annotations

import math

import numpy as np

from chop.actions.search.strategies.base import Chosen, Strategy, register_strategy


@register_strategy("random")
class Random(Strategy):
    """Every value of every key is as likely as any other."""

    looks_back = False

    def ask(self, number: int) -> Chosen | None:
        dice = _Dice(np.random.Generator(np.random.PCG64([self.quest.seed, number])))
        return self.quest.choices.suggest(dice)


class _Dice:
    """Suggests numbers without looking at anything."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._random = generator.random

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        if log:
            return round(self.suggest_float(name, low - 0.5, high + 0.5, log=True))
        return low + step * int(self._random() * ((high - low) // step + 1))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        if log:
            return math.exp(self.suggest_float(name, math.log(low), math.log(high)))
        if step is not None:
            return low + step * int(self._random() * (math.floor((high - low) / step) + 1))
        return low + (high - low) * float(self._random())
