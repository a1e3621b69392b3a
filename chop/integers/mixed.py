"""Words whose widths and steps differ by channel or element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from chop.integers.codes import MAX_BITS, MAX_WORD_BITS, Codes, TooWide, Word, bits_for
from chop.integers.scale import Scale
from chop.numerics.grid import Grid


@dataclass(frozen=True, eq=False, kw_only=True)
class MixedWord(Word):
    """A format with a range and a step for each element, in shapes that broadcast to a value.

    `low`, `high` and `width` are those of the widest. An element of no bits is always zero.
    """

    low_codes: Tensor
    high_codes: Tensor

    @classmethod
    def with_bits(cls, grid: Grid, integer_bits: Tensor, frac_bits: Tensor) -> Word:
        """Return the word of a grid with these bits instead: an ordinary one if all are equal."""
        i, f = (bits.detach().round().long().cpu() for bits in (integer_bits, frac_bits))
        i, f = i + 0 * f, f + 0 * i
        bits = (i + f).clamp(min=0)
        live = bits > 0
        widest = int(bits.max()) + int(grid.signed)
        if widest > MAX_WORD_BITS:
            raise TooWide(
                f"{widest} bits are more than the {MAX_WORD_BITS} that a rounded value may "
                f"have, as sums of products have at most {MAX_BITS}; learn fewer bits"
            )
        high = (1 << bits) - 1
        low = torch.where(live, -high if grid.overflow == "symmetric" else -high - 1, 0)
        low = low if grid.signed else torch.zeros_like(high)
        # an element of no bits has no step of its own
        coarsest = int((-f[live]).max()) if bool(live.any()) else 0
        scale = Scale.power(torch.where(live, -f, coarsest))
        ends = (int(low.min()), int(high.max()))
        rule = (grid.rounding, grid.overflow)
        width = max(widest, 1)
        if bool(live.all()) and scale.compact().uniform and bool((bits == bits.max()).all()):
            return Word(*ends, scale.compact(), width, grid.signed, *rule)
        return cls(*ends, scale, width, grid.signed, *rule, low_codes=low, high_codes=high)

    @property
    def lows(self) -> Tensor:
        return self.low_codes

    @property
    def highs(self) -> Tensor:
        return self.high_codes

    @property
    def key(self) -> tuple[object, ...]:
        ends = (self.low_codes, self.high_codes)
        return (*super().key, *(tuple(end.flatten().tolist()) for end in ends), ends[0].shape)

    def holds(self, codes: Codes) -> bool:
        if not codes.scale.same(self.scale) or codes.zero_point:
            return False
        inside = (self.low_codes <= codes.low) & (codes.high <= self.high_codes)
        return bool(inside.all())

    def wrapped(self, whole: Tensor) -> Tensor:
        low, high = (end.to(whole.device) for end in (self.low_codes, self.high_codes))
        if self.overflow != "wrap":
            return torch.minimum(torch.maximum(whole, low), high)
        return ((whole - low) & (high - low)) + low

    def each(self, shape: Sequence[int]) -> Iterator[Word]:
        parts = (self.low_codes, self.high_codes, self.scale.exponent)
        rows = zip(*(part.expand(tuple(shape)).flatten().tolist() for part in parts), strict=True)
        rule = (self.rounding, self.overflow)
        for low, high, exponent in rows:
            yield Word(low, high, Scale.power(exponent), bits_for(low, high), low < 0, *rule)

    def is_by_channel(self, rank: int) -> bool:
        """Return whether all elements of a channel, the first of `rank` dimensions, are alike."""
        return self.low_codes.ndim == rank and self.low_codes[0].numel() == 1

    def reshaped(self, before: Sequence[int], after: Sequence[int]) -> Self:
        """Return the word of a value with another shape, but the same order."""

        def moved(part: Tensor) -> Tensor:
            return part.expand(tuple(before)).reshape(tuple(after)) if part.ndim else part

        return replace(
            self,
            scale=Scale(*(moved(part) for part in self.scale.parts)),
            low_codes=moved(self.low_codes),
            high_codes=moved(self.high_codes),
        )


def element_widths(codes: Codes) -> Tensor:
    """Return the bits of each element of a value, without its batch."""
    low, high = (bound[0] for bound in codes.bounds())
    pairs = zip(low.flatten().tolist(), high.flatten().tolist(), strict=True)
    widths = [bits_for(a, b) if a != b else 0 for a, b in pairs]
    return torch.tensor(widths, dtype=torch.int64).reshape(codes.shape)
