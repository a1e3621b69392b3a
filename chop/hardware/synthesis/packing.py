"""How many LUT6 of Xilinx a netlist needs, where two small functions may share one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from chop.hardware.synthesis.netlist import Net

__all__ = ["num_pairs", "num_shift_pairs"]

SHARED_INPUTS = 5  # of the two outputs of a LUT6
MAX_CANDIDATES = 64  # that are tried for each input of a function

Inputs = frozenset[Net]


def num_pairs(functions: Sequence[Inputs]) -> int:
    """Return how many pairs of functions share a LUT6: five distinct inputs at most.

    Functions with common inputs are paired first, those with the most inputs before others; then
    those that fit by their numbers of inputs. No pair is counted that the chip could not hold.

    >>> num_pairs([frozenset({1, 2, 3}), frozenset({2, 3, 4, 5}), frozenset({6, 7, 8, 9, 10})])
    1
    """
    order = sorted(range(len(functions)), key=lambda i: (-len(functions[i]), i))
    users: dict[Net, list[int]] = defaultdict(list)
    for i in order:
        for net in functions[i]:
            users[net].append(i)
    taken: set[int] = set()
    for i in order:
        partner = None if i in taken else _partner(i, functions, users, taken)
        if partner is not None:
            taken |= {i, partner}
    rest = sorted(len(functions[i]) for i in order if i not in taken)
    return len(taken) // 2 + _pairs_by_size(rest)


def _partner(
    i: int, functions: Sequence[Inputs], users: dict[Net, list[int]], taken: set[int]
) -> int | None:
    """Return the function with the most inputs that fits beside `i` and shares an input."""
    wanted = functions[i]
    found: set[int] = set()
    for net in sorted(wanted, key=str):
        users[net] = [other for other in users[net] if other not in taken]
        near = (o for o in users[net][: MAX_CANDIDATES + 1] if o != i)
        found.update(o for o in near if len(wanted | functions[o]) <= SHARED_INPUTS)
    return min(found, key=lambda o: (-len(functions[o]), o), default=None)


def _pairs_by_size(sizes: Sequence[int]) -> int:
    """Return how many pairs of sorted numbers have a sum that fits."""
    low, high, pairs = 0, len(sizes) - 1, 0
    while low < high:
        if sizes[low] + sizes[high] <= SHARED_INPUTS:
            low, pairs = low + 1, pairs + 1
        high -= 1
    return pairs


def num_shift_pairs(controls: Iterable[tuple[Net, ...]]) -> int:
    """Return how many pairs of 16-bit shift registers share a LUT: same length, clock, enable."""
    return sum(count // 2 for count in Counter(controls).values())
