"""From floats to codes, and from codes to codes of another format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor, nn

from chop.integers.codes import Codes, TooWide, Word, bits_for
from chop.integers.op import IntegerOp
from chop.integers.rounding import SINGLE, rounded_division, rounded_shift, rounded_shifts

SINGLE_BITS = 24  # the significand of a float32
MULTIPLIER_BITS = 31  # of the quotient of two scales, as kernels for int32 have
MAX_PRODUCT = 59  # bits of a code that `sticky_product` takes, without the sign
LIMB, STICKY = 31, 2  # bits of the lower part of a wide code; bits that replace those of a product


@dataclass(frozen=True, eq=False)
class QuantizeInput(IntegerOp):
    """Floats to the nearest codes of a word: the input of a graph.

    `before` is what the network computes in float before it rounds the input.
    """

    rounds = True

    word: Word
    shape: tuple[int, ...]
    before: nn.Module | None = None

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        x = x if self.before is None else self.before.to(x.device)(x)
        if bool(x.isnan().any()):
            raise ValueError("the input contains NaN, which has no code; remove these samples")
        scale = self.word.scale
        if scale.power_of_two:
            steps = x.double() * self.per_value.to(x.device)
        else:  # as the float simulation divides
            steps = (x / scale.value.to(x.device, x.dtype)).double()
        return self._overflown(self._rounded(steps)).long()

    @cached_property
    def per_value(self) -> Tensor:
        """The steps in a value of 1."""
        exponent = self.word.scale.exponent
        return torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), -exponent)

    def _rounded(self, steps: Tensor) -> Tensor:
        if self.word.rounding == "floor":
            return steps.floor()
        nearest = steps.round()
        if self.word.rounding == "even":
            return nearest
        return nearest + (steps - nearest == 0.5)

    def _overflown(self, whole: Tensor) -> Tensor:
        low, high = (end.to(whole.device).double() for end in (self.word.lows, self.word.highs))
        if not self.word.wraps:
            return torch.minimum(torch.maximum(whole, low), high)
        turn = high - low + 1
        part = torch.fmod(whole, turn)
        part = torch.where(part > high, part - turn, part)
        part = torch.where(part < low, part + turn, part)
        end = torch.where(whole > 0, high, low)
        return torch.where(whole.isinf(), end, part)

    def result(self, *codes: Codes) -> Codes:
        return self.word.codes(self.shape, self.word.lows, self.word.highs)

    def exact_in_float(self, *codes: Codes) -> bool:
        return self.word.scale.power_of_two and self.word.width <= SINGLE_BITS

    @property
    def label(self) -> str:
        return f"Quantize {rule_of(self.word)}"


@dataclass(frozen=True, eq=False)
class Requantize(IntegerOp):
    """Codes to codes of another word: round(code · multiplier / (divisor · 2^shift)).

    Of fixed point, the multiplier is 1 and the result exact; of measured float scales it is the
    quotient of both scales, an integer of 31 bits. A negative shift is to the left.
    """

    rounds = True

    word: Word
    shift: Tensor | None = None
    divisor: Tensor | None = None
    multiplier: Tensor | None = None
    wide: bool = False  # whether products need more than 63 bits

    def fitted(self, *codes: Codes) -> Self:
        (x,) = codes
        ours, theirs = x.scale, self.word.scale
        shift = theirs.exponent - ours.exponent
        if ours.exact and theirs.exact:
            left = max(0, -int(shift.min()))
            if self.word.wraps and bits_for(-x.largest, x.largest) + left > 62:
                self._refuse_division(ours.divisor)
            return replace(self, shift=shift, divisor=ours.divisor * 1, multiplier=None)
        multiplier, shift = as_multiplier(ours.value / theirs.value)
        wide = bits_for(-x.largest, x.largest) + MULTIPLIER_BITS > 62
        if wide and (int(shift.min()) < LIMB or x.largest.bit_length() > MAX_PRODUCT):
            raise TooWide(
                f"needs more than 63 bits for a code of {x.width} bits times a multiplier of "
                f"{MULTIPLIER_BITS}; use narrower formats or scales that are powers of two"
            )
        one = torch.ones((), dtype=torch.int64)
        shift = shift - LIMB + STICKY if wide else shift
        return replace(self, shift=shift, divisor=one, multiplier=multiplier, wide=wide)

    def _refuse_division(self, divisor: Tensor) -> None:
        if bool((divisor > 1).any()):
            raise TooWide(
                "needs more than 63 bits for a quotient that wraps; use narrower formats, or "
                "overflow = 'saturate'"
            )

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return self.word.wrapped(self.rounded(x))

    def rounded(self, x: Tensor) -> Tensor:
        """Return the codes before those beyond the range are brought back."""
        assert self.shift is not None
        assert self.divisor is not None
        if self.multiplier is not None:
            multiplier = self.multiplier.to(x.device)
            x = sticky_product(x, multiplier) if self.wide else x * multiplier
        shift = self._plain_shift
        if shift is None:
            return self._divided(x)
        if shift > 0:
            return rounded_shift(x, shift, self.word.rounding)
        return x if shift == 0 else self._raised(x, whole_shift(-shift, self.word.width))

    @cached_property
    def _plain_shift(self) -> int | None:
        """The shift, or None if there is more than one, or something else to divide by."""
        assert self.shift is not None
        assert self.divisor is not None
        several = self.shift.numel() > 1 or self.divisor.numel() > 1
        return None if several or self.divisor.item() != 1 else int(self.shift)

    def _divided(self, x: Tensor) -> Tensor:
        """Divide where shifts or divisors differ by channel, or the divisor is not a power of 2."""
        assert self.shift is not None
        assert self.divisor is not None
        shift, divisor = self.shift.to(x.device), self.divisor.to(x.device)
        most = 62 - int(self.divisor.max()).bit_length()
        # beyond, the magnitudes are below one half: any larger divisor rounds alike
        right = divisor << shift.clamp(0, most)
        tiny = shift > most
        # a quotient that wraps needs all bits, and has them
        full = self.word.wraps and self._divisor_bits > 0
        limit = 62 if full else min(62, self.word.width + 2 + self._divisor_bits)
        raised = self._raised(x, (-shift).clamp(0, limit))
        if int(self.divisor.max()) == 1:
            return rounded_shifts(raised, shift.clamp(0, 63), self.word.rounding)
        result = rounded_division(raised, right, self.word.rounding)
        if not bool(tiny.any()):
            return result
        rest = x >> 63 if self.word.rounding == "floor" else torch.zeros_like(x)
        return torch.where(tiny, rest, result)

    def _raised(self, x: Tensor, shift: int | Tensor) -> Tensor:
        """Shift to the left; codes that are out of range anyway are cut before they overflow."""
        if self.word.wraps:
            return x << shift
        top = torch.as_tensor(1 << (self.word.width + self._divisor_bits)) >> shift
        end = (top + 1).to(x.device)
        cut = torch.minimum(torch.maximum(x, -end), end)
        moved = torch.as_tensor(shift, device=x.device) > 0
        return torch.where(moved, cut, x) << shift

    @property
    def _divisor_bits(self) -> int:
        assert self.divisor is not None
        return int(self.divisor.max()).bit_length() - 1 + (int(self.divisor.max()) > 1)

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        ends = [self.rounded(bound)[0] for bound in x.bounds()]
        if self.word.wraps and self._may_wrap(x, ends):
            ends = [end.expand(ends[0].shape) for end in (self.word.lows, self.word.highs)]
        low, high = (self.word.wrapped(end) for end in ends)
        return self.word.codes(x.shape, low, high)

    def _may_wrap(self, x: Codes, ends: list[Tensor]) -> bool:
        assert self.shift is not None
        left = max(0, -int(self.shift.min()))
        inside = bool(((self.word.lows <= ends[0]) & (ends[1] <= self.word.highs)).all())
        return not inside or bits_for(-x.largest, x.largest) + left > 62

    def exact_in_float(self, *codes: Codes) -> bool:
        (x,) = codes
        return x.scale.power_of_two and self.word.scale.power_of_two and x.largest <= SINGLE

    @property
    def label(self) -> str:
        return f"Requantize {rule_of(self.word)}"


def as_multiplier(ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers of 31 bits and shifts, with number / 2^shift nearest to a quotient."""
    mantissa, exponent = torch.frexp(ratio)
    multiplier = (mantissa * 2**MULTIPLIER_BITS).round().long()
    carried = multiplier >> MULTIPLIER_BITS  # 1 where rounding gave one bit more
    return multiplier >> carried, MULTIPLIER_BITS - exponent.long() - carried


def sticky_product(x: Tensor, multiplier: Tensor) -> Tensor:
    """Return x · multiplier / 2^29 with a last bit that tells whether bits below are lost.

    With one more bit after the point, it rounds like the whole product of up to 90 bits.
    """
    high, low = (x >> LIMB) * multiplier, (x & ((1 << LIMB) - 1)) * multiplier
    low_bits = low & ((1 << LIMB) - 1)
    high = high + (low >> LIMB)
    half = low_bits >> (LIMB - 1)
    rest = (low_bits & ((1 << (LIMB - 1)) - 1)) != 0
    return (high << STICKY) + (half << 1) + rest


def whole_shift(shift: int, width: int) -> int:
    """Return a left shift that moves all bits out of a word as well as `shift` does."""
    return min(shift, width + 2)


def rule_of(word: Word) -> str:
    """Return the rounding and the overflow of a word."""
    return f"{word.rounding}/{word.overflow}"
