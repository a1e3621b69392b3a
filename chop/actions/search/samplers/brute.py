"""Brute force: every design once, in an order that soon has seen a bit of everything."""

from __future__ import annotations

import math

from chop.actions.search.samplers.base import Chosen, SamplerContext, Strategy, register_strategy
from chop.actions.search.space.choices import shown_size

MAX_DESIGNS = 10**9  # at a millisecond each, they take a fortnight


@register_strategy("brute", "brute-force", "bruteforce", "grid")
class BruteForce(Strategy):
    """All designs of a space that can be counted, each once."""

    looks_back = False

    def __init__(self, context: SamplerContext) -> None:
        super().__init__(context)
        size = context.choices.size
        if size is None:
            raise ValueError(
                "brute force tries every design, but a continuous range has infinitely "
                "many values; give the range a step, or list its values"
            )
        if size > MAX_DESIGNS:
            raise ValueError(
                f"brute force tries every design, and this space has {shown_size(size)} designs, "
                f"more than {MAX_DESIGNS:,}; use tpe, random or nsgaii, or offer fewer choices"
            )
        self.size = size
        self._start = context.seed_of(0) % size
        self._stride = _coprime(size)
        self._positions = sorted(map(self._position, context.uniform))

    def ask(self, number: int) -> Chosen | None:
        if number < len(self.context.uniform):
            return self.context.uniform[number]
        if number >= self.size:
            return None
        position = number - len(self.context.uniform)
        for taken in self._positions:  # were asked for first
            position += taken <= position
        return self.context.choices.nth((self._start + position * self._stride) % self.size)

    def _position(self, chosen: Chosen) -> int:
        """Return when the walk with `_stride` visits a design."""
        steps = self.context.choices.index(chosen) - self._start
        return steps * pow(self._stride, -1, self.size) % self.size


def _coprime(size: int) -> int:
    """Return a stride coprime to `size`, which spreads the first visits."""
    # the golden section of `size`, (sqrt(5) - 1) / 2, rounded, in exact integers
    stride = max(1, (math.isqrt(20 * size * size) - 2 * size + 2) // 4)
    while math.gcd(stride, size) != 1:
        stride += 1
    return stride
