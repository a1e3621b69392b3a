"""What one step of a code is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Scale:
    """factor · 2^exponent / divisor: the value of one step, for a whole tensor or per element.

    Each part has no dimensions, or broadcasts to the shape of the value without its batch. `factor`
    lies in [1, 2) and is 1 for fixed point; `divisor` is odd, and 1 except after a mean over a
    number of elements that is not a power of two, and the like.
    """

    exponent: Tensor
    divisor: Tensor
    factor: Tensor

    @classmethod
    def power(cls, exponent: int | Tensor) -> Scale:
        """Return the scale 2^exponent."""
        one = torch.ones((), dtype=torch.int64)
        return cls(torch.as_tensor(exponent, dtype=torch.int64), one, one.double())

    @classmethod
    def of(cls, value: float | Tensor) -> Scale:
        """Return the scale of positive finite numbers; powers of two are recognised."""
        numbers = torch.as_tensor(value, dtype=torch.float64).cpu()
        if not bool((numbers.isfinite() & (numbers > 0)).all()):
            raise ValueError(f"a scale must be a positive number, not {value}; calibrate it again")
        mantissa, exponent = torch.frexp(numbers)
        one = torch.ones((), dtype=torch.int64)
        return cls(exponent.long() - 1, one, mantissa * 2)

    @property
    def exact(self) -> bool:
        """Whether the scale is a fraction of integers: fixed point, not a measured float."""
        return bool((self.factor == 1).all())

    @property
    def power_of_two(self) -> bool:
        return self.exact and bool((self.divisor == 1).all())

    @property
    def uniform(self) -> bool:
        """Whether all elements have the same scale."""
        return all(part.numel() == 1 for part in self.parts)

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.exponent, self.divisor, self.factor

    @cached_property
    def value(self) -> Tensor:
        """The scale as float64."""
        # in two steps, as 2^exponent alone may be out of range on its own
        mantissa = self.factor / self.divisor
        # ldexp would resize one without dimensions
        return torch.ldexp(mantissa + 0 * self.exponent, self.exponent)

    def times(self, other: Scale) -> Scale:
        """Return the product of two scales."""
        factor = self.factor * other.factor
        above = factor >= 2
        exponent = self.exponent + other.exponent + above.long()
        return Scale(exponent, self.divisor * other.divisor, torch.where(above, factor / 2, factor))

    def divided(self, count: int | Tensor) -> Scale:
        """Return the scale divided by positive integers."""
        counts = torch.as_tensor(count, dtype=torch.int64)
        twos = trailing_zeros(counts)
        return Scale(self.exponent - twos, self.divisor * (counts >> twos), self.factor)

    def same(self, other: Scale) -> bool:
        """Return whether both are equal for every element."""
        if not _broadcast(self.exponent, other.exponent):
            return False
        return all(bool((a == b).all()) for a, b in zip(self.parts, other.parts, strict=True))

    def compact(self) -> Scale:
        """Return the scale without dimensions if all elements have the same."""
        if not all(bool((part == part.flatten()[0]).all()) for part in self.parts):
            return self
        return Scale(*(part.flatten()[0] for part in self.parts))

    def by_channel(self, shape: Sequence[int]) -> Scale | None:
        """Return one scale per entry of the first dimension, or None if there are more."""
        if self.uniform:
            return self
        rows = [part.expand(tuple(shape)).reshape(shape[0], -1) for part in self.parts]
        if not all(bool((part == part[:, :1]).all()) for part in rows):
            return None
        return Scale(*(part[:, 0].reshape(-1, *[1] * (len(shape) - 1)) for part in rows))

    def common(self, other: Scale) -> Scale:
        """Return the largest scale that both are whole multiples of; both must be exact."""
        exponent = torch.minimum(self.exponent, other.exponent)
        return Scale(exponent, torch.lcm(self.divisor, other.divisor), self.factor)

    def multiple_of(self, other: Scale) -> Tensor:
        """Return how many steps of `other` one step of this scale has; both are exact."""
        shift = self.exponent - other.exponent
        if int(shift.max()) > 62:
            raise OverflowError(f"scales differ by {int(shift.max())} bits")
        return (other.divisor // self.divisor) << shift

    def __str__(self) -> str:
        first = tuple(part.flatten()[0] for part in self.compact().parts)
        exponent, divisor, factor = (part.item() for part in first)
        text = f"2^{exponent}" if factor == 1 else f"{factor * 2.0**exponent:.4g}"
        text += f"/{divisor}" if divisor != 1 else ""
        return text if self.compact().uniform else f"{text} …"


def _broadcast(one: Tensor, other: Tensor) -> bool:
    """Return whether the shapes of two tensors broadcast."""
    pairs = zip(reversed(one.shape), reversed(other.shape), strict=False)
    return all(n == m or 1 in (n, m) for n, m in pairs)


def trailing_zeros(x: Tensor) -> Tensor:
    """Return how often each positive integer can be halved."""
    lowest = x & -x
    return torch.log2(lowest.double()).long()


def simple_fraction(value: float) -> Fraction:
    """Return the fraction with the smallest denominator that is `value` in float32.

    >>> simple_fraction(0.01), simple_fraction(0.125)
    (Fraction(1, 100), Fraction(1, 8))
    """
    if not math.isfinite(value):
        raise ValueError(f"{value} has no code; use a finite number")
    single = torch.tensor(value, dtype=torch.float32)
    exact = Fraction(single.item())
    for digits in range(1, 9):
        near = exact.limit_denominator(10**digits)
        if torch.tensor(float(near), dtype=torch.float32) == single:
            return near
    return exact
