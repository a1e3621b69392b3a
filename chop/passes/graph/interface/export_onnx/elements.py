"""Activations whose bits differ by channel or element: constants of nodes that round them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chop.numerics.fast.learned_reference import whole_bits
from chop.numerics.integer import Integer, Rounding
from chop.numerics.mixed_rounding import MixedRounding

__all__ = ["ElementBits"]

Array = Any


@dataclass(frozen=True, eq=False)
class ElementBits:
    """Codes from `low` to `high` of steps 2^-`frac_bits`, which broadcast to a sample.

    Elements without bits are zero: their codes are from 0 to 0.
    """

    frac_bits: Array  # integers
    low: Array
    high: Array
    signed: bool
    rounding: Rounding

    @classmethod
    def of(cls, rounding: MixedRounding) -> ElementBits:
        fmt = rounding.fmt
        bits, frac_bits = (t.cpu().numpy().astype(np.int64) for t in _broadcast(rounding))
        live = bits > 0
        count = np.exp2(np.where(live, bits, 0))
        lowest = count - 1 if fmt.overflow == "symmetric" else count
        low = np.where(live & fmt.signed, -lowest, 0.0)
        high = np.where(live, count - 1, 0.0)
        return cls(np.where(live, frac_bits, 0), low, high, fmt.signed, fmt.rounding)

    @property
    def steps(self) -> Array:
        """The size of a step of each element, in float32."""
        return np.exp2(-self.frac_bits).astype(np.float32)

    @property
    def inverse_steps(self) -> Array:
        return np.exp2(self.frac_bits).astype(np.float32)

    @property
    def range(self) -> tuple[Array, Array]:
        """The smallest and the largest number of each element, in float32."""
        return tuple((codes * self.steps).astype(np.float32) for codes in (self.low, self.high))

    @property
    def width(self) -> int:
        """The bits of the widest element."""
        most = int(max(self.high.max(initial=0), 1))
        return most.bit_length() + int(self.signed)

    def cover(self, widths: tuple[int, ...]) -> Integer | None:
        """Return the format of the smallest of the widths that holds all elements, or None."""
        frac_width = int(self.frac_bits[self.high > 0].max(initial=0))
        finest = np.ldexp(np.maximum(self.high, 1), frac_width - self.frac_bits)
        needed = int(finest.max(initial=1)).bit_length() + int(self.signed)
        width = next((width for width in widths if width >= needed), None)
        return None if width is None else Integer(width, frac_width, self.signed)


def _broadcast(rounding: MixedRounding) -> tuple[Any, Any]:
    """Return widths without a sign, and fraction bits, of one shape."""
    bits, frac_bits = whole_bits(*rounding.bits_of(None))
    return bits, frac_bits + 0 * bits
