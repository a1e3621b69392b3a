"""Ops on each code alone: comparisons and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from chop.hardware.unrolled import symbols
from chop.hardware.unrolled.registry import Array, unrolls
from chop.integers import (
    ClampCodes,
    Codes,
    ConstantCodes,
    LeakyReluCodes,
    Lookup,
    Refine,
    ReluCodes,
)


@unrolls(ReluCodes)
def relu(op: ReluCodes, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    return symbols.each(lambda s: s.relu(), inputs[0])


@unrolls(ClampCodes)
def clamp(op: ClampCodes, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    return symbols.each(lambda s: symbols.clamped(s, op.low, op.high), inputs[0])


@unrolls(LeakyReluCodes)
def leaky_relu(op: LeakyReluCodes, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    def chosen(symbol: Any) -> Any:
        below, above = (symbols.affine(symbol, n, 0) for n in (op.numerator, op.denominator))
        if symbol.low >= 0:
            return above
        return symbol.msb_mux(below, above) if symbol.high >= 0 else below

    return symbols.each(chosen, inputs[0])


def table_adders(op: Lookup, codes: Sequence[Codes]) -> int:
    """A table of six inputs takes as many LUTs as its result has bits, as an adder does."""
    return math.prod(codes[-1].shape) * max(1, len(op.entries) >> 6)


@unrolls(Lookup, adders=table_adders)
def lookup(op: Lookup, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    x = codes[0]
    entries = op.entries.numpy()
    ends = (bound[0].flatten().tolist() for bound in x.bounds())
    row = zip(symbols.flat(inputs[0]), *ends, strict=True)
    tables = (
        symbols.table(s, low, entries[low - op.lowest : high - op.lowest + 1])
        for s, low, high in row
    )
    return symbols.shaped(tables, x.shape)


@unrolls(Refine)
def refine(op: Refine, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    (x,) = inputs
    factors = op.factor.expand(x.shape).flatten().tolist()
    row = zip(symbols.flat(x), factors, strict=True)
    return symbols.shaped((symbols.affine(s, factor, 0) for s, factor in row), x.shape)


@unrolls(ConstantCodes)
def constant(op: ConstantCodes, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    return symbols.constants(op.value)
