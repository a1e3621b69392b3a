"""How sums of products are distributed over multipliers and clock cycles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from chop.hardware.streaming.component import Budget
from chop.hardware.streaming.stream import FILLER, Places

__all__ = ["Folding", "fold"]


@dataclass(frozen=True)
class Folding:
    """Loops over groups, passes, words and slices; in each, `multiplied` codes meet `lanes` rows.

    A vector arrives in beats of `slots` codes, `gather` of which make a word. A slice is the part
    of a word that is multiplied at once.
    """

    rows: int  # of the weight, per group
    groups: int
    beats: int  # of the vector, per group
    slots: int  # codes of a beat
    vectors: int  # per sample
    gather: int
    multiplied: int
    lanes: int

    @property
    def words(self) -> int:
        return -(-self.beats // self.gather)

    @property
    def slices(self) -> int:
        return -(-self.gather * self.slots // self.multiplied)

    @property
    def passes(self) -> int:
        return -(-self.rows // self.lanes)

    @property
    def multipliers(self) -> int:
        return self.multiplied * self.lanes

    @property
    def cycles(self) -> int:
        """The clock cycles of a sample; a vector is loaded while the one before is in use."""
        used = self.words * self.slices * self.passes
        return self.vectors * self.groups * max(used, self.beats)

    @property
    def levels(self) -> int:
        """The levels of the adder tree."""
        return (self.multiplied - 1).bit_length()

    @property
    def delay(self) -> int:
        """The clock cycles from the last slice of a pass to the result."""
        return 4 + self.levels

    @property
    def buffer_codes(self) -> int:
        """The codes that the memory for vectors has room for: two vectors."""
        depth = 1 << max(1, (self.groups * self.words - 1).bit_length())
        return 2 * depth * self.gather * self.slots

    def parameters(self) -> dict[str, int]:
        """Return the parameters of fixed_linear that follow."""
        depth = self.groups * self.passes * self.words * self.slices
        return {
            "OUT_LANES": self.lanes,
            "GROUPS": self.groups,
            "BEATS": self.beats,
            "GATHER": self.gather,
            "WORDS": self.words,
            "MULTIPLIED": self.multiplied,
            "SLICES": self.slices,
            "PASSES": self.passes,
            "LEVELS": self.levels,
            "WEIGHT_ADDRESS": max(1, (depth - 1).bit_length()),
            "BIAS_ADDRESS": max(1, (self.groups * self.passes - 1).bit_length()),
        }

    def of_rows(self, values: Places, filler: int = 0) -> Places:
        """Return one value per row of the weight, in beats of the result."""
        padded = np.full((self.groups, self.passes * self.lanes), filler, np.int64)
        padded[:, : self.rows] = values.reshape(self.groups, self.rows)
        return padded.reshape(-1, self.lanes)

    def weights(self, weight: Places, columns: Places) -> Places:
        """Return the words of the weight, in the order in which they are read.

        `columns` has the column of each slot of a vector: (groups, beats, slots), or -1.
        """
        shape = (self.groups, self.words * self.gather, self.slots)
        places = np.full(shape, FILLER, np.int64)
        places[:, : self.beats] = columns
        words = places.reshape(self.groups, self.words, self.gather * self.slots)
        padded = np.full((*words.shape[:2], self.slices * self.multiplied), FILLER, np.int64)
        padded[..., : words.shape[2]] = words
        row = self.of_rows(np.arange(len(weight)), FILLER)
        row = row.reshape(self.groups, self.passes, 1, 1, self.lanes, 1)
        column = padded.reshape(self.groups, 1, self.words, self.slices, 1, self.multiplied)
        found = np.where((row != FILLER) & (column != FILLER), weight[row, column], 0)
        return found.reshape(-1, self.lanes * self.multiplied)


def fold(rows: int, groups: int, beats: int, slots: int, vectors: int, budget: Budget) -> Folding:
    """Return the quickest folding within a budget, or the smallest that is quick enough."""
    given = (rows, groups, beats, slots, vectors)
    found = [Folding(*given, *choice) for choice in _choices(rows, beats, slots, budget)]
    enough = [folding for folding in found if folding.cycles <= budget.cycles]
    if enough:
        return min(enough, key=lambda f: (f.multipliers, *_complexity(f), f.cycles))
    return min(found, key=lambda f: (f.cycles, f.multipliers, *_complexity(f)))


def _complexity(folding: Folding) -> tuple[int, ...]:
    """Return what decides between foldings with equal numbers of multipliers."""
    return folding.slices * folding.multiplied * (folding.slices > 1), folding.gather


def _choices(rows: int, beats: int, slots: int, budget: Budget) -> Iterator[tuple[int, int, int]]:
    """Yield the gathered beats, the multiplied codes and the lanes that the budget allows."""
    for gather, multiplied in _widths(beats, slots, budget.multipliers):
        for lanes in parts(rows):
            fits = multiplied * lanes <= budget.multipliers
            if fits and not (budget.plain and rows % lanes):
                yield gather, multiplied, lanes


def _widths(beats: int, slots: int, most: int) -> Iterator[tuple[int, int]]:
    for multiplied in parts(slots):
        if multiplied <= most:
            yield 1, multiplied
    for gather in parts(beats):
        if gather > 1 and gather * slots <= most:
            yield gather, gather * slots


def parts(count: int) -> list[int]:
    """Return the sizes of equal parts of a number of things, the last of which may be smaller.

    >>> parts(10)
    [1, 2, 3, 4, 5, 10]
    """
    return sorted({-(-count // number) for number in range(1, count + 1)})
