"""Streams of codes between components: how many lanes, in which order."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chop.hardware.circuit import Port
from chop.integers.codes import Codes, bits_for

__all__ = ["Places", "Stream"]

Places = np.ndarray[Any, np.dtype[np.int64]]
FILLER = -1


@dataclass(frozen=True, eq=False)
class Stream:
    """A value of the integer graph as it travels: beat after beat, `lanes` codes at a time.

    `slots` has one row per beat. Each entry is the place of a code in the value, in row-major order
    without the batch; -1 marks a lane without a code, whose bits mean nothing.
    """

    codes: Codes
    slots: Places
    free: bool = False  # whether it can be sent in any order, as constants can

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value, without the batch."""
        return self.codes.shape

    @property
    def width(self) -> int:
        """The bits of a code."""
        if self.codes.zero_point:  # the width is that of code + zero_point
            return bits_for(self.codes.lowest, self.codes.highest)
        return self.codes.width

    @property
    def signed(self) -> bool:
        """Whether codes have a sign."""
        return self.codes.lowest < 0 if self.codes.zero_point else self.codes.signed

    @property
    def beats(self) -> int:
        """The number of beats of a sample."""
        return len(self.slots)

    @property
    def lanes(self) -> int:
        """The number of codes of a beat."""
        return int(self.slots.shape[1])

    @property
    def bits(self) -> int:
        """The bits of a beat."""
        return self.lanes * self.width

    @property
    def size(self) -> int:
        """The number of codes of a sample."""
        return math.prod(self.shape)

    @property
    def sequence(self) -> Places:
        """The places of the codes in the order in which they are sent."""
        flat = self.slots.reshape(-1)
        sequence: Places = flat[flat != FILLER]
        return sequence

    def moved(self, slots: Places) -> Stream:
        """Return the same value in other slots."""
        return replace(self, slots=slots)

    def carrying(self, codes: Codes, slots: Places) -> Stream:
        """Return a stream of other codes on the same wires."""
        word = replace(codes, width=self.width, signed=self.signed, zero_point=0)
        return Stream(word, slots)

    def vectors(self, length: int) -> tuple[Places, Places] | None:
        """Return how runs of `length` places follow each other, such as the rows of a matrix.

        The first result is the number of each vector, in the order sent; the second has a row per
        beat of a vector with places in it. None: the beats of a vector do not stay together, or
        the vectors differ in their order.
        """
        count = self.size // length
        if self.beats % count:
            return None
        rows = self.slots.reshape(count, self.beats // count, self.lanes)
        first = rows[0] % length
        first[rows[0] == FILLER] = FILLER
        numbers = rows.reshape(count, -1).max(axis=1) // length
        expected = np.where(first == FILLER, FILLER, first + numbers[:, None, None] * length)
        return (numbers, first) if np.array_equal(rows, expected) else None

    def pixels(self, channels: int) -> Places | None:
        """Return the channels in the beats of a pixel, if pixels come row by row; else None."""
        area = self.size // channels
        if self.beats % area:
            return None
        rows = self.slots.reshape(area, self.beats // area, self.lanes)
        first = np.where(rows[0] == FILLER, FILLER, rows[0] // area)
        pixel = np.arange(area)[:, None, None]
        expected = np.where(first == FILLER, FILLER, first * area + pixel)
        return first if np.array_equal(rows, expected) else None

    def port(self, name: str, value: str) -> Port | None:
        """Return the port that carries the stream, or None if no port sends codes in this order."""
        flat = self.slots.reshape(-1)
        if bool((flat[: self.size] == FILLER).any()) or self.beats != -(-self.size // self.lanes):
            return None
        order = order_of(flat[: self.size], self.shape)
        if order is None:
            return None
        plain = order == tuple(range(len(order)))
        rest = (self.shape, self.width, self.signed, self.lanes)
        return Port(name, value, *rest, () if plain else order)


def order_of(sequence: Places, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the order of dimensions in which places follow each other, or None."""
    places = np.arange(math.prod(shape)).reshape(shape)
    for order in itertools.permutations(range(len(shape))):
        if np.array_equal(places.transpose(order).reshape(-1), sequence):
            return order
    return None


def in_lanes(sequence: Places, lanes: int) -> Places:
    """Return the slots of codes that are sent one after the other; the last beat is filled up."""
    beats = -(-len(sequence) // lanes)
    slots = np.full(beats * lanes, FILLER, np.int64)
    slots[: len(sequence)] = sequence
    return slots.reshape(beats, lanes)


def channels_last(shape: tuple[int, ...]) -> Places:
    """Return the places of an image pixel by pixel, with the channels of a pixel together."""
    places = np.arange(math.prod(shape)).reshape(shape[0], -1)
    return np.ascontiguousarray(places.T).reshape(-1)
