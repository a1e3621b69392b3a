"""How the codes of a value lie in a vector of bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from chop.hardware.unrolled import symbols
from chop.hardware.unrolled.stages import Logic
from chop.integers import Codes

__all__ = ["Bits", "Field", "Packing", "merged", "resized"]


@dataclass(frozen=True)
class Bits:
    """Bits of a signal, one bit that is repeated, or a constant; the lowest bit is `start`."""

    signal: str | None  # None: a constant
    start: int  # or the value of the constant
    width: int
    repeated: bool = False


@dataclass(frozen=True)
class Field:
    """A number in a vector: value = bits · 2^exponent."""

    signed: bool
    width: int
    exponent: int = 0


@dataclass(frozen=True)
class Packing:
    """Numbers one after the other, the first in the lowest bits, each in its own width."""

    fields: tuple[Field, ...]

    @classmethod
    def of(cls, codes: Codes) -> Packing:
        """Return codes in as few bits as their bounds need, element by element."""
        return cls(tuple(Field(*kind) for kind in symbols.kinds(codes)))

    @classmethod
    def into(cls, logic: Logic) -> Packing:
        """Return the inputs of alkaid's logic."""
        return cls._of(logic.inp_kifs.T.tolist())

    @classmethod
    def out_of(cls, logic: Logic) -> Packing:
        """Return the outputs of alkaid's logic."""
        return cls._of(logic.out_kifs.T.tolist())

    @classmethod
    def _of(cls, rows: Iterable[Sequence[int]]) -> Packing:
        return cls(tuple(Field(bool(k), k + i + f, -f if k + i + f else 0) for k, i, f in rows))

    @property
    def bits(self) -> int:
        return sum(field.width for field in self.fields)

    def starts(self) -> list[int]:
        """Return where each number starts."""
        return [0, *accumulate(field.width for field in self.fields)][:-1]


def resized(source: Bits, field: Field, to: Field) -> list[Bits]:
    """Return a number in another width; it is known to fit. The lowest bits come first."""
    if not to.width:
        return []
    low = field.exponent - to.exponent
    parts = [Bits(None, 0, min(low, to.width))] if low > 0 else []
    skipped = max(0, -low)
    room = to.width - max(low, 0)
    kept = min(field.width - skipped, room)
    if kept > 0:
        parts.append(Bits(source.signal, source.start + skipped, kept))
    if room > max(kept, 0):
        fill = room - max(kept, 0)
        top = source.start + field.width - 1
        sign = Bits(source.signal, top, fill, repeated=True)
        parts.append(sign if field.signed and field.width else Bits(None, 0, fill))
    return parts


def merged(parts: Iterable[Bits]) -> list[Bits]:
    """Return the same bits with neighbours joined; the lowest bits come first."""
    row: list[Bits] = []
    for part in parts:
        joined = _joined(row[-1], part) if row else None
        if joined is None:
            row.append(part)
        else:
            row[-1] = joined
    return row


def _joined(low: Bits, high: Bits) -> Bits | None:
    if low.signal != high.signal or low.repeated or high.repeated:
        return None
    width = low.width + high.width
    if low.signal is None:
        return Bits(None, low.start | high.start << low.width, width)
    return Bits(low.signal, low.start, width) if low.start + low.width == high.start else None
