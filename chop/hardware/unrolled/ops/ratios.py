"""Rounded multiples of codes: the shortest multiplication that gives the same result."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from chop.numerics.grid import Rounding

__all__ = ["Ratio", "ShortProduct", "shortest_product"]

MAX_RESULTS = 1 << 18  # results that are looked at one by one
MAX_PRODUCT = 52  # bits
EXTRA, NEAR = 3, 2  # longer and neighbouring factors, of which the one with fewest adders is taken


@dataclass(frozen=True)
class Ratio:
    """round((code · numerator + addend) / denominator), with a numerator above zero."""

    numerator: int
    denominator: int
    rounding: Rounding
    addend: int = 0

    def of(self, code: int) -> int:
        """Return the result for a code."""
        below, rest = divmod(code * self.numerator + self.addend, self.denominator)
        if self.rounding == "floor":
            return below
        twice = 2 * rest
        tie_goes_up = self.rounding == "up" or below % 2 == 1
        return below + (twice > self.denominator or (twice == self.denominator and tie_goes_up))

    def first(self, result: int) -> int:
        """Return the smallest code with at least this result."""
        if self.rounding == "floor":
            return -((self.addend - result * self.denominator) // self.numerator)
        at_least = (2 * result - 1) * self.denominator - 2 * self.addend
        per = 2 * self.numerator
        if self.rounding == "up" or result % 2 == 0:
            return -(-at_least // per)
        return at_least // per + 1


@dataclass(frozen=True)
class ShortProduct:
    """(code · factor + offset) >> shift."""

    factor: int
    offset: int
    shift: int


@lru_cache(maxsize=4096)
def shortest_product(
    ratio: Ratio, low: int, high: int, lowest: int | None, highest: int | None
) -> ShortProduct | None:
    """Return the cheapest product that equals the ratio for all codes from `low` to `high`.

    Results below `lowest` or above `highest` are clamped afterwards, so that they may differ.
    Return None if there is none, as with ties that are rounded to even numbers.
    """
    first, last = ratio.of(low), ratio.of(high)
    bottom = first if lowest is None else max(first, lowest)
    top = last if highest is None else min(last, highest)
    if top - bottom > MAX_RESULTS:
        return None
    results = np.arange(bottom + 1, top + 1, dtype=np.int64)
    starts = np.array([ratio.first(int(k)) for k in results], dtype=np.int64)
    ends = (low, bottom if bottom == first else None, high, top if top == last else None)
    reach = max(abs(low), abs(high)).bit_length()
    found: list[ShortProduct] = []
    widest = max(abs(bottom), abs(top) + 1).bit_length()  # of int64, while they are shifted
    for shift in range(62 - max(reach, widest)):
        if found and shift > found[0].shift + EXTRA:
            break
        exact = (ratio.numerator << shift) // ratio.denominator
        if exact.bit_length() + reach >= MAX_PRODUCT:
            break
        near = range(exact - NEAR, exact + NEAR + 2) if found else range(exact, exact + 2)
        products = (_product(m, shift, results, starts, ends) for m in near if m > 0)
        found += [product for product in products if product is not None]
    return min(found, key=lambda p: (digits(p.factor), p.shift), default=None)


Ends = tuple[int, int | None, int, int | None]
Results = np.ndarray[tuple[int], np.dtype[np.int64]]


def _product(
    factor: int, shift: int, results: Results, starts: Results, ends: Ends
) -> ShortProduct | None:
    """Return the product with a factor, if some offset makes it right."""
    low, least, high, most = ends
    targets = results << shift
    at_least = [int((targets - factor * starts).max())] if len(results) else []
    at_most = [int((targets - 1 - factor * (starts - 1)).min())] if len(results) else []
    at_least += [(least << shift) - factor * low] if least is not None else []
    at_most += [((most + 1) << shift) - 1 - factor * high] if most is not None else []
    lower = max(at_least or at_most)
    upper = min(at_most or at_least)
    return ShortProduct(factor, _round_number(lower, upper), shift) if lower <= upper else None


def _round_number(low: int, high: int) -> int:
    """Return the number from `low` to `high` with the most zeros at its end."""
    zeros = (high - low).bit_length() + 1
    while True:
        number = -(-low // (1 << zeros)) << zeros
        if low <= number <= high:
            return number
        zeros -= 1


def digits(number: int) -> int:
    """Return the powers of two that a number is the sum or difference of.

    >>> digits(7), digits(11)
    (2, 3)
    """
    return ((3 * number) ^ number).bit_count()
