"""From codes to codes of another word: rounding and overflow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chop.hardware.unrolled import symbols
from chop.hardware.unrolled.fusing import RoundedAffine
from chop.hardware.unrolled.ops.ratios import (
    MAX_PRODUCT,
    MAX_RESULTS,
    Ratio,
    ShortProduct,
    shortest_product,
)
from chop.hardware.unrolled.registry import Array, unrolls
from chop.integers import Codes, Requantize, TooWide, Word
from chop.integers.ops.requantize import LIMB, STICKY
from chop.numerics.grid import Rounding

ROUND_MODES = {"even": "RND_CONV", "up": "RND", "floor": "TRN"}
TABLE_BITS = 6  # of a code that is looked up instead of multiplied: the inputs of a LUT


@unrolls(Requantize)
def requantize(op: Requantize, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    (x,) = inputs
    ends = (bound[0].flatten().tolist() for bound in codes[0].bounds())
    words = op.word.each(x.shape)
    rows = zip(words, symbols.flat(x), ratios(op, x.shape), *ends, strict=True)
    return symbols.shaped((_word(*row) for row in rows), x.shape)


@unrolls(RoundedAffine)
def rounded_affine(op: RoundedAffine, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    (x,) = inputs
    form = (-1, *[1] * (x.ndim - 1))
    channels = (op.affine.multiplier.view(form), op.affine.offset.view(form))
    factors, offsets = (t.expand(x.shape).flatten().tolist() for t in channels)
    ends = (bound[0].flatten().tolist() for bound in codes[0].bounds())
    rows = zip(
        symbols.flat(x), ratios(op.requantize, x.shape), factors, offsets, *ends, strict=True
    )
    pairs = zip(op.requantize.word.each(x.shape), rows, strict=True)
    return symbols.shaped((_word(word, *_combined(*row)) for word, row in pairs), x.shape)


def _combined(
    symbol: Any, ratio: Ratio, factor: int, offset: int, low: int, high: int
) -> tuple[Any, Ratio, int, int]:
    """Return a ratio that multiplies and adds before it rounds; a negative factor negates codes."""
    whole = replace(ratio, numerator=abs(factor) * ratio.numerator, addend=offset * ratio.numerator)
    return (symbol, whole, low, high) if factor >= 0 else (-symbol, whole, -high, -low)


def ratios(op: Requantize, shape: Sequence[int]) -> Iterator[Ratio]:
    """Return what each code is multiplied by."""
    assert op.shift is not None
    assert op.divisor is not None
    multiplier = op.multiplier if op.multiplier is not None else np.ones((), np.int64)
    dropped = LIMB - STICKY if op.wide else 0
    parts = (
        np.broadcast_to(np.asarray(t), shape).ravel().tolist()
        for t in (op.shift, op.divisor, multiplier)
    )
    for shift, divisor, factor in zip(*parts, strict=True):
        zeros = (factor & -factor).bit_length() - 1
        places = shift + dropped - zeros
        numerator, denominator = factor >> zeros << max(0, -places), divisor << max(0, places)
        yield Ratio(numerator, denominator, op.word.rounding)


def _word(word: Word, symbol: Any, ratio: Ratio, low: int, high: int) -> Any:
    """Return the code of a word for one code."""
    if word.low == word.high:
        return symbols.constant(word.low)
    if symbol.low == symbol.high or not ratio.numerator:
        return brought_into(word, symbols.constant(ratio.of(int(symbol.low))))
    if is_power(ratio.denominator) and is_power(ratio.numerator) and not ratio.addend:
        shift = ratio.denominator.bit_length() - ratio.numerator.bit_length()
        return brought_into(word, shifted(symbol, shift, ratio.rounding))
    if sum(symbol.kif) <= TABLE_BITS:
        entries = np.array([_overflown(word, ratio.of(code)) for code in range(low, high + 1)])
        return symbols.table(symbol, low, entries)
    limits = (None, None) if word.wraps else (word.low, word.high)
    return brought_into(word, _quotient(symbol, ratio, (low, high, *limits)))


def _overflown(word: Word, number: int) -> int:
    """Return a number of any size brought into the range of a word."""
    if not word.wraps:
        return min(max(number, word.low), word.high)
    return ((number - word.low) & ((1 << word.width) - 1)) + word.low


Limits = tuple[int, int, int | None, int | None]


def _quotient(symbol: Any, ratio: Ratio, limits: Limits) -> Any:
    """Return the rounded multiple of a code, as a product with a short factor if there is one."""
    if (short := shortest_product(ratio, *limits)) is not None:
        return _short(symbol, short)
    denominator = ratio.denominator
    ends = (code * ratio.numerator + ratio.addend for code in limits[:2])
    if any(end.bit_length() >= symbols.MAX_BITS for end in ends):
        raise TooWide(
            f"multiplies and rounds by a product of more than {symbols.MAX_BITS} bits; use a "
            f"narrower format, or a scale that is a power of two"
        )
    if is_power(denominator):
        product = symbols.affine(symbol, ratio.numerator, ratio.addend)
        return shifted(product, denominator.bit_length() - 1, ratio.rounding)
    up = shortest_product(replace(ratio, rounding="up"), *limits)
    if up is None or ratio.rounding != "even":
        raise TooWide(
            f"divides by {denominator}, with more than {MAX_RESULTS} results or a product of more "
            f"than {MAX_PRODUCT} bits; use a narrower format"
        )
    return _even(symbol, ratio, _short(symbol, up))


def _short(symbol: Any, product: ShortProduct) -> Any:
    whole = symbols.affine(symbol, product.factor, product.offset)
    return shifted(whole, product.shift, "floor")


def _even(symbol: Any, ratio: Ratio, rounded_up: Any) -> Any:
    """Return a quotient whose ties, which were rounded up, are rounded to even numbers."""
    bits = ratio.denominator.bit_length()
    half = ratio.denominator // 2
    whole = symbols.affine(symbol, ratio.numerator, ratio.addend + half)
    back = symbols.affine(rounded_up, -ratio.denominator, 0)
    rest = symbols.cut(symbols.cut(whole, bits) + symbols.cut(back, bits), bits)
    odd = symbols.cut(rounded_up, 1)
    tie = ~rest.unary_bit_op("any")
    return rounded_up - (odd & tie)


def shifted(symbol: Any, shift: int, rounding: Rounding) -> Any:
    """Return symbol / 2^shift as an integer."""
    moved = symbol * 2.0**-shift
    if shift <= 0:
        return moved
    if rounding == "even" and (moved + 0.5).kif[2] < moved.kif[2]:
        # all values are ties, or as near to one: alkaid would look for the bits of another sum
        moved = symbols.fresh(moved)
    signed, whole, _ = moved.kif
    # one bit more, as rounding up may carry
    return moved.quantize(signed, max(whole, 0) + 1, 0, "WRAP", ROUND_MODES[rounding])


def is_power(number: int) -> bool:
    """Return whether a number is a power of two."""
    return number & (number - 1) == 0


def brought_into(word: Word, symbol: Any) -> Any:
    """Return an integer brought into the range of a word by its rule for overflow."""
    if word.low <= symbol.low and symbol.high <= word.high:
        return symbol
    if word.wraps:
        signed = word.low < 0
        return symbols.wrapped(symbol, signed, word.width - signed)
    return symbols.clamped(symbol, word.low, word.high)
