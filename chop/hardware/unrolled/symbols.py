"""Symbolic codes: alkaid's fixed-point arrays, with integers as values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.hardware.tools import need_package
from chop.hardware.unrolled.registry import Array
from chop.integers import Codes
from chop.integers.codes import bits_for

MAX_BITS = 52  # of any value; alkaid holds bounds and constants as float64
LIMB = 20  # bits of a constant; alkaid computes with some in float32
SMALL = 12  # bits of a factor up to which the best of all adder graphs is found at once
HARDWARE = (1, 1, -1)  # alkaid's adder model: cost and carry delay grow with every bit


Numbers = np.ndarray[Any, np.dtype[Any]]


def need_alkaid() -> None:
    """Refuse to go on without alkaid."""
    need_package("alkaid", "an unrolled circuit")


def kinds(codes: Codes) -> list[tuple[bool, int]]:
    """Return the sign and the width of each code, in row-major order; constants have no bits."""
    low, high = (bound[0].flatten().tolist() for bound in codes.bounds())
    return [(a < 0, bits_for(a, b) if a != b else 0) for a, b in zip(low, high, strict=True)]


def inputs(codes: Codes) -> Array:
    """Return the symbols of a value that comes from outside."""
    from alkaid.trace import FVArray

    pairs = kinds(codes)
    signed, width = (np.array(part, dtype=np.int64) for part in zip(*pairs, strict=True))
    array = FVArray.from_kif(signed, width - signed, np.zeros_like(width), hwconf=HARDWARE)
    fixed = codes.bounds()[0].flatten().tolist()
    flat = [
        constant(value) if not bits else symbol
        for symbol, value, (_, bits) in zip(np.asarray(array), fixed, pairs, strict=True)
    ]
    return shaped(flat, codes.shape)


def constant(value: float) -> Any:
    """Return a symbol with one value."""
    from alkaid.trace import FVariable, HWConfig

    return FVariable.from_const(float(value), hwconf=HWConfig(*HARDWARE))


def constants(values: Tensor) -> Array:
    """Return symbols with one value each."""
    return shaped([constant(x) for x in values.flatten().tolist()], tuple(values.shape))


def shaped(symbols: Iterable[Any], shape: Sequence[int]) -> Array:
    """Return an array of symbols."""
    from alkaid.trace import FVArray

    array = np.empty(int(np.prod(shape)), dtype=object)
    array[:] = list(symbols)
    return FVArray(array.reshape(tuple(shape)), hwconf=HARDWARE)


def flat(array: Array) -> list[Any]:
    """Return the symbols of an array in row-major order."""
    return list(np.asarray(array).ravel())


def each(function: Callable[..., Any], *arrays: Array) -> Array:
    """Return the array of `function` for each symbol; arrays are broadcast."""
    raw = np.broadcast_arrays(*(np.asarray(a) for a in arrays))
    return shaped((function(*row) for row in zip(*map(np.ravel, raw), strict=True)), raw[0].shape)


def wrapped(symbol: Any, signed: bool, whole: int, fraction: int = 0) -> Any:
    """Return the bits of a symbol that a fixed-point word holds; those above and below are cut off.

    `whole` are the bits above the point without the sign. alkaid 0.8 takes one bit of a shifted
    symbol for its highest one, so that the symbol is cut to a sign and this bit first.
    """
    if not signed and whole + fraction == 1:
        symbol = symbol.quantize(True, whole, fraction, "WRAP", "TRN")
    return symbol.quantize(signed, whole, fraction, "WRAP", "TRN")


def within(symbol: Any, low: int, high: int) -> Any:
    """Return the symbol in as few bits as the bounds need, which it is known to keep."""
    if low == high:
        return constant(low)
    return wrapped(symbol, low < 0, bits_for(low, high) - (low < 0))


def bounded(array: Array, codes: Codes) -> Array:
    """Return the symbols in as few bits as interval analysis found."""
    ends = (bound[0].flatten().tolist() for bound in codes.bounds())
    symbols = (within(x, a, b) for x, a, b in zip(flat(array), *ends, strict=True))
    return shaped(symbols, codes.shape)


def fresh(symbol: Any) -> Any:
    """Return the same symbol for which alkaid forgets how it was computed.

    alkaid follows sums as affine functions of their inputs, with factors of at most 24 bits.
    """
    signed, whole, fraction = (int(x) for x in symbol.kif)
    if not signed + whole + fraction or symbol.low == symbol.high:
        return symbol
    other = wrapped(symbol, not signed, whole + signed - (not signed), fraction)
    return wrapped(other, bool(signed), whole, fraction)


def halves(symbol: Any, bits: int) -> tuple[Any, Any]:
    """Return symbol >> bits, and the bits below."""
    return wrapped(symbol, symbol.low < 0, MAX_BITS, -bits) * 2.0**-bits, cut(symbol, bits)


def cut(symbol: Any, bits: int) -> Any:
    """Return the lowest bits as a number without sign."""
    return wrapped(symbol, False, bits)


def is_sign(symbol: Any) -> bool:
    """Return whether a symbol is 0 or one negative number: a sign without other bits."""
    signed, whole, fraction = (int(x) for x in symbol.kif)
    return bool(signed) and signed + whole + fraction == 1


def negated_sign(symbol: Any) -> Any:
    """Return minus a symbol that is only a sign: the same bit, without sign."""
    _, whole, fraction = (int(x) for x in symbol.kif)
    return wrapped(symbol, False, whole + 1, fraction)


def plus(symbol: Any, other: Any) -> Any:
    """Return the sum of two symbols, or of a symbol and an integer of any size."""
    if not isinstance(other, int):
        if symbol.low == symbol.high:
            symbol, other = other, symbol
        return plus(symbol, int(other.low)) if other.low == other.high else symbol + other
    if is_short(other):
        return symbol + float(other)
    bits = (other & -other).bit_length() - 1 + LIMB
    (high, low), above = halves(fresh(symbol), bits), other >> bits
    sums = fresh(plus(high, above)), fresh(plus(low, other - (above << bits)))
    return plus(sums[1], sums[0] * 2.0**bits)


def is_short(value: int) -> bool:
    """Return whether alkaid holds a constant exactly, from its highest to its lowest bit."""
    return abs(value) < (value & -value) << LIMB or not value


def affine(symbol: Any, factor: int, offset: int) -> Any:
    """Return factor · symbol + offset, for integers of any size."""
    sign = -1 if factor < 0 else 1
    symbol = fresh(symbol) if abs(factor) >= 1 << SMALL else symbol
    result, bits = constant(0), 0
    parts = []  # the lowest bits of the product, which higher limbs leave alone
    while abs(factor) >> bits:
        limb = (abs(factor) >> bits) & ((1 << LIMB) - 1)
        result = product(symbol, sign * limb) + result
        bits += LIMB
        if abs(factor) >> bits:
            result, low = halves(result, LIMB)
            parts.append(low * 2.0 ** (bits - LIMB))
    result = total([result * 2.0 ** max(0, bits - LIMB), *parts])
    return plus(result, offset)


def multiplied(symbol: Any, other: Any) -> Any:
    """Return the product of two symbols, or of a symbol and an integer of any size."""
    if isinstance(other, int):
        return affine(symbol, other, 0)
    if symbol.low == symbol.high:
        symbol, other = other, symbol
    return affine(symbol, int(other.low), 0) if other.low == other.high else symbol * other


def product(symbol: Any, factor: int) -> Any:
    """Return the product with an integer of at most 20 bits."""
    if abs(factor) < 1 << SMALL:
        return symbol * float(factor)
    return flat(shaped([symbol], (1,)) @ np.array([[float(factor)]]))[0]


def limbs(matrix: Numbers) -> Iterator[tuple[Numbers, int]]:
    """Return matrices of at most 20 bits that add up to a matrix, and how far each is shifted."""
    rest, shift = matrix.astype(np.int64), 0
    while rest.any():
        limb = np.sign(rest) * (np.abs(rest) & ((1 << LIMB) - 1))
        if limb.any():
            yield limb.astype(np.float64), shift
        rest = (rest - limb) >> LIMB
        shift += LIMB


def clamped(symbol: Any, low: int, high: int) -> Any:
    """Return min(max(symbol, low), high)."""
    if low >= symbol.high or high <= symbol.low:
        return constant(low if low >= symbol.high else high)
    bits = high.bit_length()
    if high + 1 != 1 << bits or low not in (0, ~high, -high) or symbol.step != 1:
        return _at_most(at_least(symbol, low), high)
    if symbol.low >= 0 or low == 0:
        return _clamped_above(symbol.relu(), bits)
    return _clamped_to_width(symbol, bits, symmetric=low == -high)


def at_least(symbol: Any, low: int) -> Any:
    """Return max(symbol, low)."""
    if symbol.low >= low or is_short(low):
        return symbol.max_of(low)
    return _replaced(plus(symbol, -low).is_negative(), low, symbol)


def _at_most(symbol: Any, high: int) -> Any:
    if symbol.high <= high or is_short(high):
        return symbol.min_of(high)
    return _replaced(plus(-symbol, high).is_negative(), high, symbol)


def _replaced(condition: Any, value: int, symbol: Any) -> Any:
    """Return a value of any size where the condition is 1, and the symbol elsewhere."""
    if is_short(value) and symbol.low >= -(1 << LIMB) and symbol.high < 1 << LIMB:
        return condition.msb_mux(constant(value), symbol)
    above, below = halves(symbol, LIMB)
    upper = _replaced(condition, value >> LIMB, above)
    return upper * 2.0**LIMB + _replaced(condition, value & ((1 << LIMB) - 1), below)


def _clamped_above(symbol: Any, bits: int) -> Any:
    """Return min(symbol, 2^bits - 1) without a comparison: all bits are set if one above is."""
    over, inside = halves(symbol, bits)
    if over.high == 0:
        return inside
    return cut(inside | -_any(over), bits)


def _clamped_to_width(symbol: Any, bits: int, *, symmetric: bool) -> Any:
    """Return a symbol that may be negative, clamped to `bits` bits and a sign."""
    above, inside = halves(symbol, bits)
    negative = symbol.is_negative()
    if symbol.high >= 1 << bits:
        inside = cut(inside | -(_any(above) & ~negative), bits)
    if symbol.low < -(1 << bits):
        inside = inside & -(~negative | _all(above))
    if symmetric:
        inside = inside | (negative & ~_any(inside))
    return inside - negative * 2.0**bits


def _any(symbol: Any) -> Any:
    return symbol.unary_bit_op("any")


def _all(symbol: Any) -> Any:
    return symbol.unary_bit_op("all")


def table(symbol: Any, lowest: int, entries: Numbers) -> Any:
    """Return the entry of a symbol whose values start at `lowest`."""
    if not symbol.low <= 0 <= symbol.high:
        # if it comes from a table, alkaid later makes entries zero that do not matter
        symbol = fresh(symbol)
    first = int(symbol.low)
    size = int((symbol.high - symbol.low) / symbol.step) + 1
    # entries of values that never occur do not matter
    full = np.full(size, np.nan)
    places = (np.arange(len(entries)) + lowest - first) / symbol.step
    inside = (places == np.floor(places)) & (places >= 0) & (places < size)
    full[places[inside].astype(int)] = entries[inside]
    if entries.max() < 1 << LIMB and entries.min() >= -(1 << LIMB):
        return symbol.lookup(full)
    upper = np.floor(full / 2.0**LIMB)
    return symbol.lookup(upper) * 2.0**LIMB + symbol.lookup(full - upper * 2.0**LIMB)


def largest(symbols: Sequence[Any]) -> Any:
    """Return the maximum, by a tree of comparisons."""
    return tree(_larger, symbols)


def _larger(a: Any, b: Any) -> Any:
    # alkaid 0.8 takes the highest bit of the difference for its sign, even where it has none
    difference = a - b
    if difference.low >= 0 or difference.high <= 0:
        return a if difference.low >= 0 else b
    return a.max_of(b)


def total(symbols: Sequence[Any]) -> Any:
    """Return the sum, by a tree of adders."""
    return tree(lambda a, b: a + b, symbols)


def tree(function: Callable[[Any, Any], Any], symbols: Sequence[Any]) -> Any:
    """Combine neighbours until one symbol is left; the order of operands is kept."""
    row = list(symbols)
    while len(row) > 1:
        pairs = [row[i : i + 2] for i in range(0, len(row), 2)]
        row = [reduce(function, pair) for pair in pairs]
    return row[0]


def places(shape: Sequence[int]) -> Tensor:
    """Return the number of each element, as a batch of one."""
    return torch.arange(int(np.prod(shape))).reshape(1, *shape)
