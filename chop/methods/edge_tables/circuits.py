"""Truth tables on edges, and the adders of their results."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from chop.hardware.unrolled import symbols
from chop.hardware.unrolled.ops.requantize import brought_into, shifted
from chop.hardware.unrolled.registry import Array, unrolls
from chop.integers import Codes, Scale, Word
from chop.methods.edge_tables.ops import EdgeTables
from chop.numerics.grid import Rounding

HALF_BITS = 5  # of a table of which two results share a LUT


def edge_adders(op: EdgeTables, codes: Sequence[Codes]) -> int:
    return len(op.reads) * math.prod(codes[-1].shape[:-1])


@unrolls(EdgeTables, adders=edge_adders, starts_layer=True)
def edge_tables(op: EdgeTables, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    (x,) = inputs
    rows = np.asarray(x).reshape(-1, x.shape[-1])
    sums = [s for row in rows for s in _row(op, list(row))]
    return symbols.shaped(sums, codes[-1].shape)


def _row(op: EdgeTables, row: Sequence[Any]) -> list[Any]:
    """Return the outputs for the features of one row."""
    assert op.exponent is not None
    rounding = op.rounding
    terms: list[list[Any]] = [[] for _ in op.bias]
    known: dict[tuple[int, ...], tuple[Any, bool]] = {}  # several edges round alike
    parts = (op.reads, op.writes, rounding.width, rounding.exponent - op.exponent)
    for edge, (i, o, width, shift) in enumerate(zip(*(p.tolist() for p in parts), strict=True)):
        key = (i, width, shift)
        if key not in known:
            known[key] = _rounded(op, edge, row[i], shift)
        symbol, is_rounded = known[key]
        terms[o].append(_entry(op, edge, symbol, 0 if is_rounded else shift))
    return [_total(found, bias) for found, bias in zip(terms, op.bias.tolist(), strict=True)]


def _rounded(op: EdgeTables, edge: int, symbol: Any, shift: int) -> tuple[Any, bool]:
    """Return the input of a table, and whether it is the code of the edge's format already.

    A table of few bits rounds by itself, and so does one whose input exceeds its range by none.
    """
    rounding = op.rounding
    if rounding.rounding != "floor" and sum(symbol.kif) <= HALF_BITS:
        return symbol, False
    way: Rounding = rounding.rounding
    whole = shifted(symbol, shift, way)
    size, first = int(rounding.size[edge]), int(rounding.first[edge])
    if sum(int(n) for n in whole.kif) <= HALF_BITS and rounding.overflow != "wrap":
        return whole, True
    low = int(rounding.lowest[edge])
    signed = rounding.signed
    word = Word(
        low, first + size - 1, Scale.power(0), int(rounding.width[edge]), signed,
        overflow=rounding.overflow,
    )  # fmt: skip
    return brought_into(word, whole), True


def _entry(op: EdgeTables, edge: int, symbol: Any, shift: int) -> Any:
    """Return the entry of an edge; codes of its input that never occur do not count."""
    low, high = int(symbol.low), int(symbol.high)
    every = torch.arange(low, high + 1)
    rounding = op.rounding.kept(torch.tensor([edge]))
    places = rounding.places(every[:, None], rounding.exponent - shift)[:, 0]
    entries = op.tables[edge][places].numpy()
    if (entries == entries[0]).all():
        return symbols.constant(float(entries[0]))
    return symbols.table(symbol, low, entries)


def _total(terms: Sequence[Any], bias: int) -> Any:
    """Return the sum, of the narrowest terms first."""
    rows = [(sum(int(n) for n in t.kif), number, t) for number, t in enumerate(terms)]
    heapq.heapify(rows)
    number = len(rows)
    while len(rows) > 1:
        one, other = heapq.heappop(rows)[2], heapq.heappop(rows)[2]
        both = symbols.plus(one, other)
        heapq.heappush(rows, (sum(int(n) for n in both.kif), number, both))
        number += 1
    return symbols.plus(rows[0][2], bias) if rows else symbols.constant(float(bias))
