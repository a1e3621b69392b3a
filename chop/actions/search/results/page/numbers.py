"""Numbers and durations as text."""

from __future__ import annotations

import math
from collections.abc import Iterable

ABSENT = "–"
SIGNIFICANT = 4


def decimals(values: Iterable[float | None]) -> int:
    """Return the digits after the point for a whole column, so that the points are aligned."""
    sizes = [abs(value) for value in values if value is not None and value]
    if not sizes or all(size == int(size) for size in sizes):
        return 0
    largest = math.floor(math.log10(max(sizes)))
    return min(max(SIGNIFICANT - 1 - largest, 0), 9)


def number(value: float | None, digits: int) -> str:
    """Return a number as `1,234.50`, with a true minus sign."""
    return ABSENT if value is None else f"{value:,.{digits}f}".replace("-", "−")


def difference(value: float, digits: int) -> str:
    """Return a number with its sign, a plus too."""
    return number(value, digits) if value < 0 else f"+{number(value, digits)}"


def standard_error(share: float | None, samples: int | None) -> float | None:
    """Return the binomial standard error of a share of samples; None for what is not a share."""
    if share is None or not samples or samples < 1 or not 0 <= share <= 1:
        return None
    return math.sqrt(share * (1 - share) / samples)


def duration(seconds: float | None) -> str:
    """Return a duration as `1 h 02 min`, `2 min 05 s`, `4.2 s` or `12 ms`."""
    if seconds is None:
        return ABSENT
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def compact(value: float | None) -> float | int | None:
    """Return a number rounded to six significant digits, but never more coarsely than to 1."""
    if value is None:
        return None
    short = round(value, max(5 - math.floor(math.log10(abs(value))), 0)) if value else 0.0
    return int(short) if short == int(short) else short
