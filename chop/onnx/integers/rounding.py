"""Rounding, shifting and overflow of integers as ONNX nodes.

ONNX shifts numbers without a sign only, and onnxruntime's integer `Div` rounds toward zero: numbers
are made positive by a multiple of the divisor before they are divided.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.integers import Word
from chop.integers.mixed import MixedWord
from chop.numerics.grid import Rounding
from chop.onnx.integers.writer import BOOL, INT64, Writer, WrittenValue, numbers_dtype

__all__ = ["Bounded", "brought_back", "multiplied", "quotient", "raised"]

SHORT = 2**60  # below, the sum of a number, its offset and half of the divisor fits into int64


@dataclass(frozen=True)
class Bounded:
    """A value with bounds of all of its elements."""

    value: WrittenValue
    low: int
    high: int

    @property
    def largest(self) -> int:
        return max(abs(self.low), abs(self.high))


def whole(numbers: list[int], like: Tensor) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64).reshape(like.shape)


def quotient(w: Writer, x: Bounded, divisor: Tensor, shift: Tensor, rounding: Rounding) -> Bounded:
    """Return x / (divisor · 2^shift), rounded, for shifts from 0; per element or for all."""
    divisor, shift = divisor + 0 * shift, shift + 0 * divisor
    pairs = zip(divisor.flatten().tolist(), shift.flatten().tolist(), strict=True)
    # beyond twice the largest number, all divisors round alike
    divisors = [d << min(s, 64) for d, s in pairs]
    if rounding == "floor":
        divisors = [min(d, x.largest + 1) for d in divisors]
    elif max(divisors) > 2 * x.largest:
        none = [d > 2 * x.largest for d in divisors]
        mask = whole([0 if n else -1 for n in none], divisor)
        value = w.op("BitwiseAnd", x.value, mask)
        x = Bounded(value, min(x.low, 0), max(x.high, 0))
        divisors = [1 if n else d for d, n in zip(divisors, none, strict=True)]
    if max(divisors) == 1:
        return x
    divide = _short_quotient if x.largest < SHORT else _long_quotient
    value = divide(w, x, whole(divisors, divisor), rounding)
    least = min(divisors)
    return Bounded(value, -(-x.low // least) - 1 if x.low < 0 else 0, max(0, x.high // least) + 1)


def _short_quotient(w: Writer, x: Bounded, divisor: Tensor, rounding: Rounding) -> WrittenValue:
    offset = (divisor - 1 + max(0, -x.low)) // divisor * divisor if x.low < 0 else 0 * divisor
    halves = {"floor": 0 * divisor, "up": divisor // 2, "even": (divisor - 1) // 2}
    added = offset + halves[rounding]
    dtype = numbers_dtype(x.low, x.high + int(added.max()) + 1)
    numbers = w.cast(x.value, dtype)
    if rounding == "even":
        numbers = w.op("Add", numbers, _odd(w, numbers, divisor, offset))
    numbers = w.op("Add", numbers, added) if bool(added.any()) else numbers
    numbers = w.op("Div", numbers, divisor)
    return w.op("Sub", numbers, offset // divisor) if bool(offset.any()) else numbers


def _odd(w: Writer, x: WrittenValue, divisor: Tensor, offset: Tensor) -> WrittenValue:
    """Return 1 where half of the divisor rounds up: x / divisor is odd, and there is a half."""
    has_half = divisor % 2 == 0
    if bool((divisor & (divisor - 1) == 0).all()):  # the bit is in x
        bit = w.op("BitwiseAnd", x, torch.where(has_half, divisor, 0))
        return w.smaller(bit, 1)
    below = w.op("Div", w.op("Add", x, offset), divisor)
    # whether the offset is an odd multiple
    odd = w.op("BitwiseAnd", w.op("Add", below, offset // divisor % 2), 1)
    return w.op("Mul", odd, has_half.long())


def _long_quotient(w: Writer, x: Bounded, divisor: Tensor, rounding: Rounding) -> WrittenValue:
    """Compare what is left with half of the divisor: slower, but with no sum that overflows."""
    numbers = w.cast(x.value, INT64)
    rest = w.op("Mod", numbers, divisor)  # which has the sign of the divisor
    below = w.op("Div", w.op("Sub", numbers, rest), divisor)
    if rounding == "floor":
        return below
    other = w.op("Sub", w.constant(divisor, INT64), rest)
    if rounding == "even":  # a tie counts as above one half if `below` is odd
        rest = w.op("Add", rest, w.op("BitwiseAnd", below, 1))
        above = w.op("Greater", rest, other, dtype=BOOL)
    else:
        above = w.op("GreaterOrEqual", rest, other, dtype=BOOL)
    return w.op("Add", below, w.cast(above, INT64))


def raised(w: Writer, x: Bounded, shift: Tensor, word: Word, divisor: int = 1) -> Bounded:
    """Return x · 2^shift, or a number that the overflow of a word treats alike."""
    top = int(shift.max())
    if top <= 0 or x.largest == 0:
        return x
    if x.largest << top < 2**62:
        return multiplied(w, x, torch.ones_like(shift) << shift)
    bits = word.width + divisor.bit_length() - (divisor == 1)
    if word.wraps:
        assert divisor == 1, "such quotients are refused by the integer graph"
        shift = shift.clamp(max=word.width)
        mask = torch.where(shift > 0, (torch.ones_like(shift) << (word.width - shift)) - 1, -1)
        value = w.op("BitwiseAnd", w.cast(x.value, INT64), mask)
        cut = Bounded(value, min(0, x.low), max(x.high, 1 << word.width))
        value = w.op("Mul", value, torch.ones_like(shift) << shift)
        return Bounded(value, cut.low, cut.high)
    shift = shift.clamp(max=bits + 2)
    end = torch.where(shift > 0, (torch.tensor(1 << bits) >> shift) + 1, x.largest)
    value = w.clipped(w.cast(x.value, INT64), -end, end)
    most = max(x.largest, 1 << (bits + 3))
    return Bounded(w.op("Mul", value, torch.ones_like(shift) << shift), -most, most)


def multiplied(w: Writer, x: Bounded, factor: Tensor) -> Bounded:
    """Return x times positive numbers."""
    most = int(factor.max())
    low, high = min(x.low, x.low * most), max(x.high, x.high * most)
    if most == 1 == int(factor.min()):
        return x
    return Bounded(w.op("Mul", w.cast(x.value, numbers_dtype(low, high)), factor), low, high)


def brought_back(w: Writer, x: Bounded, word: Word) -> WrittenValue:
    """Return numbers brought into the range of a word by its rule for overflow."""
    low, high = word.lows, word.highs
    if int(low.max()) <= x.low and x.high <= int(high.min()):
        return x.value
    if word.overflow != "wrap":
        return w.clipped(x.value, low, high)
    mask = high - low if isinstance(word, MixedWord) else torch.tensor((1 << word.width) - 1)
    ends = (x.low - int(low.max()), x.high - int(low.min()), int(mask.max()))
    numbers = w.op("Sub", w.cast(x.value, numbers_dtype(x.low, x.high, *ends)), low)
    return w.op("Add", w.op("BitwiseAnd", numbers, mask), low)
