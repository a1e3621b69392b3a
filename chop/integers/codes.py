"""Values as integers: their widths, their scales, and which codes they reach."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from chop.integers.scale import Scale
from chop.numerics.grid import Grid, Overflow, Rounding

MAX_BITS = 63  # of an accumulator, sign included, so that int64 holds it with one bit to spare
MAX_WORD_BITS = 48  # of a rounded value


class TooWide(ValueError):
    """A value needs more bits than the interpreter has; the message goes on after the node."""


def bits_for(low: int, high: int) -> int:
    """Return the bits that hold all integers from `low` to `high`; negative ones need a sign.

    >>> bits_for(0, 255), bits_for(-128, 127), bits_for(-1, 128)
    (8, 8, 9)
    """
    if low >= 0:
        return max(1, high.bit_length())
    return 1 + max((-low - 1).bit_length(), high.bit_length(), 0)


def check_bits(largest: int, what: str) -> None:
    """Refuse magnitudes that do not fit an accumulator."""
    if (bits := bits_for(-largest, largest)) > MAX_BITS:
        raise TooWide(
            f"needs {what} of {bits} bits; at most {MAX_BITS} are allowed; use narrower formats"
        )


@dataclass(frozen=True, eq=False)
class Codes:
    """A value of an integer graph, without its batch: code · scale, with code in [low, high].

    `low` and `high` broadcast to `shape`; interval analysis with the actual weights gives them.
    With a `zero_point`, a memory stores code + zero_point in `width` bits; arithmetic is on codes.
    """

    shape: tuple[int, ...]
    low: Tensor
    high: Tensor
    scale: Scale
    width: int
    signed: bool
    zero_point: int = 0

    @classmethod
    def reaching(cls, shape: Sequence[int], low: Tensor, high: Tensor, scale: Scale) -> Codes:
        """Return codes of as few bits as the interval needs."""
        low, high = narrowed(low), narrowed(high)
        least, most = int(low.min()), int(high.max())
        width = bits_for(least, most)
        if width > MAX_BITS:
            check_bits(max(-least, most), "a value")
        return cls(tuple(shape), low, high, scale.compact(), width, least < 0)

    def within(self, low: Tensor, high: Tensor, shape: Sequence[int] | None = None) -> Codes:
        """Return codes with the same scale and other bounds; with a zero point, of this width."""
        new = Codes.reaching(self.shape if shape is None else shape, low, high, self.scale)
        if not self.zero_point:
            return new
        return replace(new, width=self.width, signed=self.signed, zero_point=self.zero_point)

    @cached_property
    def lowest(self) -> int:
        return int(self.low.min())

    @cached_property
    def highest(self) -> int:
        return int(self.high.max())

    @property
    def largest(self) -> int:
        """The largest magnitude of a code."""
        return max(abs(self.lowest), abs(self.highest))

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the lowest and the highest codes in the full shape, each as a batch of one."""
        return tuple(x.expand(self.shape).unsqueeze(0) for x in (self.low, self.high))  # type: ignore[return-value]

    def values(self, codes: Tensor) -> Tensor:
        """Return the values of codes, in float64."""
        return codes.double() * self.scale.value.to(codes.device)

    @property
    def kind(self) -> str:
        """The width and the sign in short: s8 or u8."""
        return f"{'s' if self.signed else 'u'}{self.width}"


def narrowed(bound: Tensor) -> Tensor:
    """Return a bound without dimensions if all elements are equal."""
    first = bound.flatten()[0]
    return first if bool((bound == first).all()) else bound


@dataclass(frozen=True, eq=False)
class Word:
    """A format that values are rounded to: its codes, its scale, and how it rounds."""

    low: int
    high: int
    scale: Scale
    width: int
    signed: bool
    rounding: Rounding = "even"
    overflow: Overflow = "saturate"
    zero_point: int = 0

    @classmethod
    def of(cls, grid: Grid, rank: int = 1) -> Self:
        """Return the word of a grid, for tensors of `rank` dimensions, the batch included."""
        if grid.width > MAX_WORD_BITS:
            raise TooWide(
                f"{grid.width} bits are more than the {MAX_WORD_BITS} that a rounded value may "
                f"have, as sums of products have at most {MAX_BITS}; use a narrower format"
            )
        if len({*grid.zero_points}) > 1:
            raise ValueError(
                "zero points per channel are not supported; use one for the whole tensor"
            )
        if grid.axis is not None and grid.axis % rank == 0:
            raise ValueError("there is one scale per sample; use the axis of the channels")
        scale = grid.scale([1] * rank)
        point = grid.zero_points[0]
        return cls(
            grid.low - point, grid.high - point,
            Scale.of(scale if grid.axis is None else scale[0]),
            grid.width, grid.signed, grid.rounding, grid.overflow, point,
        )  # fmt: skip

    @property
    def lows(self) -> Tensor:
        """The lowest code, of each element if they differ."""
        return torch.tensor(self.low)

    @property
    def highs(self) -> Tensor:
        """The highest code, of each element if they differ."""
        return torch.tensor(self.high)

    def each(self, shape: Sequence[int]) -> Iterator[Word]:
        """Yield the word of each element of a value, in row-major order."""
        return itertools.repeat(self, math.prod(shape))

    @property
    def wraps(self) -> bool:
        return self.overflow == "wrap"

    @property
    def key(self) -> tuple[object, ...]:
        """What two equal words have in common."""
        scale = tuple(tuple(part.flatten().tolist()) for part in self.scale.parts)
        rule = (self.rounding, self.overflow, self.zero_point)
        return (self.low, self.high, scale, self.width, self.signed, *rule)

    def codes(self, shape: Sequence[int], low: Tensor, high: Tensor) -> Codes:
        """Return the description of a value in this format."""
        low, high = narrowed(low), narrowed(high)
        word = (self.width, self.signed, self.zero_point)
        return Codes(tuple(shape), low, high, self.scale.compact(), *word)

    def holds(self, codes: Codes) -> bool:
        """Return whether rounding `codes` to this format changes nothing."""
        inside = self.low <= codes.lowest and codes.highest <= self.high
        return inside and codes.scale.same(self.scale) and codes.zero_point == self.zero_point

    def wrapped(self, whole: Tensor) -> Tensor:
        """Return integers brought into the range by the rule for overflow."""
        if self.overflow != "wrap":
            return whole.clamp(self.low, self.high)
        return ((whole - self.low) & ((1 << self.width) - 1)) + self.low
