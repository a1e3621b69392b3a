"""Codes of values: their range, what one is worth, and how values become codes and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor

Rounding = Literal["even", "up", "floor"]
Overflow = Literal["saturate", "symmetric", "wrap"]
SIGNIFICAND = 24  # bits of float32


def code_range(width: int, signed: bool, narrow: bool = False) -> tuple[int, int]:
    """Return the ends of the codes of a width; `narrow`: without the lowest signed one."""
    if not signed:
        return 0, 2**width - 1
    high = 2 ** (width - 1) - 1
    return (-high if narrow else -high - 1), high


@dataclass(frozen=True)
class Grid:
    """Values (code - zero point) · scale, with the codes from `low` to `high`.

    There is one scale and zero point per tensor, one per index along `axis`, or, with `block`, one
    per so many elements along it, in row-major order. Values go to the nearest code, ties as
    `rounding` says; those beyond the ends as `overflow` says: "symmetric" clips them too.
    """

    low: int
    high: int
    scales: tuple[float, ...]
    zero_points: tuple[int, ...] = ()  # none: 0
    axis: int | None = None
    rounding: Rounding = "even"
    overflow: Overflow = "saturate"
    block: int = 0

    def __post_init__(self) -> None:
        if not self.zero_points:
            object.__setattr__(self, "zero_points", (0,) * len(self.scales))

    @property
    def signed(self) -> bool:
        return self.low < 0

    @property
    def narrow(self) -> bool:
        """Whether the lowest code of signed numbers is left out."""
        return self.signed and self.low == -self.high

    @property
    def width(self) -> int:
        """The bits that the codes need."""
        largest = max(self.high, -self.low - 1)
        return max(1, largest.bit_length() + self.signed)

    @property
    def is_full(self) -> bool:
        """Whether the codes are all of a width, or all but the lowest signed one."""
        ends = (code_range(self.width, self.signed, narrow) for narrow in (False, True))
        return (self.low, self.high) in ends

    @property
    def has_zero_point(self) -> bool:
        """Whether 0 has another code than 0."""
        return any(self.zero_points)

    @property
    def is_fixed_point(self) -> bool:
        """Whether there is one scale, a power of two, and no zero point."""
        scales = {*self.scales}
        power = len(scales) == 1 and math.frexp(self.scales[0])[0] == 0.5
        return power and not self.has_zero_point

    @property
    def frac_width(self) -> int:
        """The bits after the binary point of fixed point."""
        return 1 - math.frexp(self.scales[0])[1]

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest value."""
        pairs = list(zip(self.scales, self.zero_points, strict=True))
        lows, highs = ([(code - z) * s for s, z in pairs] for code in (self.low, self.high))
        return min(lows), max(highs)

    def clipped(self, low: float | None, high: float | None) -> Self:
        """Return the grid with fewer codes."""
        lowest = self.low if low is None else max(self.low, math.ceil(low))
        highest = self.high if high is None else min(self.high, math.floor(high))
        return replace(self, low=lowest, high=highest)

    def shifted(self, by: int) -> Self:
        """Return the same values with other codes."""
        points = tuple(point + by for point in self.zero_points)
        return replace(self, low=self.low + by, high=self.high + by, zero_points=points)

    def scale(self, shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the scales in a shape that broadcasts to values of this shape."""
        return self._along(self.scales, shape, dtype)

    def zero_point(self, shape: Sequence[int]) -> Tensor:
        """Return the zero points in a shape that broadcasts to values of this shape."""
        return self._along(self.zero_points, shape, torch.int64)

    def _along(self, numbers: Sequence[float], shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        found = torch.tensor(numbers, dtype=dtype)
        if self.axis is None:
            return found.reshape(())
        if not self.block:
            sizes = [1] * len(shape)
            sizes[self.axis] = -1
            return found.reshape(sizes)
        blocks = found.reshape(self.blocks(shape))
        spread = blocks.repeat_interleave(self.block, self.axis)
        return spread.narrow(self.axis, 0, shape[self.axis])

    def blocks(self, shape: Sequence[int]) -> list[int]:
        """Return how many blocks values of this shape have in each dimension."""
        assert self.axis is not None
        counts = [*shape]
        counts[self.axis] = -(-counts[self.axis] // self.block)
        return counts

    def encode(self, x: Tensor) -> Tensor:
        """Return the codes that values are rounded to, as int64; NaN gets that of 0."""
        exact = x.float() if x.dtype != torch.float64 else x
        exact = exact.double() if self.width > SIGNIFICAND else exact
        steps = exact / self.scale(x.shape, exact.dtype).to(x.device)
        codes = whole(steps.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf), self.rounding)
        # nothing beyond 2^62 is a code, unless it wraps
        codes = self._wrapped(codes.double()).clamp(-(2.0**63), 2.0**63 - 1024).long()
        return self._clamped(codes + self.zero_point(x.shape).to(x.device))

    def _wrapped(self, codes: Tensor) -> Tensor:
        """Return codes modulo their number, if those that are too large wrap; not infinite ones."""
        if self.overflow != "wrap":
            return codes
        count = float(self.high - self.low + 1)
        turned = torch.remainder(codes, count)
        turned = torch.where(turned > self.high, turned - count, turned)
        return torch.where(codes.isinf(), codes, turned)

    def _clamped(self, codes: Tensor) -> Tensor:
        return codes.clamp(self.low, min(self.high, 2**63 - 1))

    def decode(self, codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the values of codes."""
        multiples = codes - self.zero_point(codes.shape).to(codes.device)
        scale = self.scale(codes.shape).to(codes.device)
        # a product of a code of 24 bits and a float32 is exact in float64
        return (multiples.double() * scale).to(dtype)


@dataclass(frozen=True, eq=False)
class FixedScales:
    """Rounds values to nearest with `scales` that stay fixed.

    `scales` have the shape of the values, and `rule(x, *scales)` rounds x. `sets_scale` says which
    of the values set a scale, where they do.
    """

    rule: Callable[..., Tensor]
    scales: tuple[Tensor, ...] = ()
    sets_scale: Tensor | None = None

    def nearest(self, x: Tensor, columns: slice = slice(None)) -> Tensor:
        """Return the nearest values of these columns."""
        return self.rule(x, *(scale[..., columns] for scale in self.scales))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> FixedScales:
        """Return the rounding of values that are laid out differently."""
        return FixedScales(self.rule, tuple(change(scale) for scale in self.scales))


@dataclass(frozen=True, eq=False, kw_only=True)
class ElementGrid(Grid):
    """Codes with a range and a scale of their own for each element, broadcast to a value.

    `low` and `high` are those of the widest, and `scales` is the scale of the finest. An element
    without bits has the code 0 only.
    """

    lows: Tensor
    highs: Tensor
    steps: Tensor  # float64

    def scale(self, shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
        return self.steps.to(dtype)

    def cover(self, widths: Sequence[int]) -> Grid | None:
        """Return the grid of the smallest of the widths that holds all elements, or None."""
        frac_bits = 1 - torch.frexp(self.steps)[1]
        finest = max([0, *frac_bits[self.highs > 0].tolist()])
        largest = torch.ldexp(self.highs.clamp(min=1).double(), finest - frac_bits).max()
        needed = int(largest).bit_length() + self.signed
        fitting = [width for width in widths if width >= needed]
        return Grid(*code_range(fitting[0], self.signed), (2.0**-finest,)) if fitting else None

    def _wrapped(self, codes: Tensor) -> Tensor:
        if self.overflow != "wrap":
            return codes
        lows, highs = self.lows.double(), self.highs.double()
        turned = torch.remainder(codes, highs - lows + 1)
        turned = torch.where(turned > highs, turned - (highs - lows + 1), turned)
        return torch.where(codes.isinf(), codes, turned)

    def _clamped(self, codes: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(codes, self.lows), self.highs)


def whole(steps: Tensor, rounding: Rounding) -> Tensor:
    """Return numbers rounded to integers."""
    if rounding == "floor":
        return steps.floor()
    nearest = steps.round()
    # exact, unlike the sum of a number and one half
    return nearest + (steps - nearest == 0.5).to(steps.dtype) if rounding == "up" else nearest
