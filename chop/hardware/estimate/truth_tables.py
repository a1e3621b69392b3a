"""How many LUTs a truth table takes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

__all__ = ["table_features"]

Array = np.ndarray[Any, Any]
HALF = 5  # inputs of a function of which two share a LUT
WHOLE = 6  # inputs of a LUT


def table_features(entries: Array) -> Counter[str]:
    """Return the functions that a table consists of, by what they cost.

    There is an entry for each index; those that never occur are NaN and count as the entry before
    them. Outputs with equal entries are one function, and so are outputs that are each other's
    opposite. If the index has up to five bits, two outputs share a LUT: `table` counts LUTs.
    Otherwise it counts functions of six inputs, and `small_table` those of fewer, which share a LUT
    if their inputs allow it. A function of more than six inputs is split by the input that leaves
    the fewest: `table_part` counts the parts.
    """
    occurs = ~np.isnan(entries)
    if not occurs.any():
        return Counter()
    last = np.maximum.accumulate(np.where(occurs, np.arange(len(entries)), -1))
    whole = entries[np.where(last >= 0, last, np.argmax(occurs))].astype(np.int64)
    functions: dict[bytes, Array] = {}
    for place in range(max(int(abs(whole).max()).bit_length() + 1, 1)):
        bits = ((whole >> place) & 1).astype(np.bool_)
        bits = bits ^ bits[0]
        if bits.any():
            functions.setdefault(bits.tobytes(), bits)
    inputs = len(entries).bit_length() - 1
    reduced = [_reduced(bits.reshape((2,) * inputs)) for bits in functions.values()]
    reduced = [bits for bits in reduced if bits.ndim > 1]  # others are wires
    if inputs <= HALF:
        return Counter(table=-(-len(reduced) // 2)) if reduced else Counter()
    found: Counter[str] = Counter()
    for bits in reduced:
        if bits.ndim > WHOLE:
            found["table_part"] += _parts(bits)
        else:
            found["small_table" if bits.ndim <= HALF else "table"] += 1
    return found


def _parts(bits: Array) -> int:
    """Return the functions of up to six inputs that one of more inputs consists of."""
    bits = _reduced(bits)
    if bits.ndim <= WHOLE:
        return int(bits.ndim > 1)
    halves = [(bits.take(0, axis), bits.take(1, axis)) for axis in range(bits.ndim)]
    sizes = [sum(2.0 ** _reduced(half).ndim for half in pair) for pair in halves]
    one, other = halves[int(np.argmin(sizes))]
    return _parts(one) + _parts(other)


def _reduced(bits: Array) -> Array:
    """Return the function without inputs that it does not depend on."""
    axis = 0
    while axis < bits.ndim:
        one, other = bits.take(0, axis), bits.take(1, axis)
        if np.array_equal(one, other):
            bits = one
        else:
            axis += 1
    return bits
