"""The importance of each choice: the share of an objective's variance that it explains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

BINS = 8  # into which the values of a wide range are put


def importance(rows: Sequence[Mapping[str, Any]], values: Sequence[float]) -> dict[str, float]:
    """Return, for each key, the share of the variance between its values; the sum is 1.

    This is the main effect of functional ANOVA, from the trials themselves. What chance alone
    would give, one part in (n - 1) for each further value, is subtracted.
    """
    mean = sum(values) / len(values) if values else 0.0
    total = sum((value - mean) ** 2 for value in values)
    if len(values) < 3 or total == 0:
        return {}
    shares = {}
    for key in sorted({key for row in rows for key in row}):
        label = _labels([row.get(key) for row in rows])
        groups: dict[Any, list[float]] = defaultdict(list)
        for row, value in zip(rows, values, strict=True):
            groups[label(row.get(key))].append(value)
        between = sum(len(g) * (sum(g) / len(g) - mean) ** 2 for g in groups.values())
        chance = (len(groups) - 1) / (len(values) - 1)
        shares[key] = max(0.0, between / total - chance)
    whole = sum(shares.values())
    return {key: share / whole if whole else 0.0 for key, share in shares.items()}


def _labels(values: Sequence[Any]) -> Callable[[Any], Any]:
    """Return the function that groups values: each by itself, or many numbers by bins."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(set(numbers)) <= BINS:
        return str
    low, high = min(numbers), max(numbers)

    def binned(value: Any) -> Any:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return str(value)
        return min(BINS - 1, int(BINS * (value - low) / (high - low)))

    return binned
