"""Tables of one value, and truth tables of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from chop.hardware.unrolled import symbols
from chop.hardware.unrolled.registry import Array, unrolls
from chop.hardware.unrolled.symbols import LIMB
from chop.integers import Codes, Lookup, NeuronTables

Numbers = np.ndarray[Any, np.dtype[np.int64]]


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


def table_luts(op: NeuronTables, codes: Sequence[Codes]) -> int:
    """Return about how many LUTs of six inputs the tables are."""
    entries = 1 << max(0, min(op.width, codes[0].width) * op.num_inputs - 6)
    return len(op.reads) * codes[-1].width * entries


@unrolls(NeuronTables, adders=table_luts, starts_layer=True)
def neuron_tables(op: NeuronTables, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    flat = symbols.flat(inputs[0])
    tables = op.tables.numpy()
    rows = zip(op.reads.tolist(), op.chosen.tolist(), strict=True)
    results = [
        _result(op, [flat[i] if i >= 0 else None for i in reads], tables[chosen])
        for reads, chosen in rows
    ]
    return symbols.shaped(results, op.shape)


def _result(op: NeuronTables, reads: Sequence[Any], table: Numbers) -> Any:
    """Return an entry of a table; inputs that never change are no part of its index."""
    places = [(s, place * op.width) for place, s in enumerate(reads) if s is not None]
    fixed = [(int(s.low), place) for s, place in places if s.low == s.high]
    start = sum((code & ((1 << op.width) - 1)) << place for code, place in fixed)
    varying = [(s, place) for s, place in places if s.low != s.high]
    if not varying:
        return symbols.constant(float(table[start]))
    index, values = joined([s for s, _ in varying])
    entries = np.full(len(values[0]), start)
    reached = np.ones(len(entries), bool)
    for (symbol, place), value in zip(varying, values, strict=True):
        entries += (value & ((1 << op.width) - 1)) << place
        reached &= (value >= symbol.low) & (value <= symbol.high)
    return looked_up(index, table[entries], reached)


def joined(row: Sequence[Any]) -> tuple[Any, list[Numbers]]:
    """Return the bits of symbols side by side, the first lowest, and what each is worth there.

    The values of a symbol are listed by the integer that the joined bits form.
    """
    fields, values, start = [], [], 0
    widths = [sum(symbol.kif) for symbol in row]
    every = np.arange(1 << sum(widths), dtype=np.int64)
    for symbol, width in zip(row, widths, strict=True):
        signed, whole, fraction = symbol.kif
        # so that all values of these bits count, even those that never occur
        bits = symbols.wrapped(symbols.fresh(symbol), False, whole + signed, fraction)
        fields.append(bits * 2.0 ** (fraction + start))
        digit = (every >> start) & ((1 << width) - 1)
        digit -= (digit >> (width - 1) << width) * int(signed)
        values.append(digit << -fraction)
        start += width
    return reduce(lambda a, b: a | b, fields), values


def looked_up(index: Any, entries: Numbers, reached: np.ndarray[Any, np.dtype[np.bool_]]) -> Any:
    """Return the entry of a table at an index from 0; entries that are not reached do not count."""
    low, high = int(index.low), int(index.high)
    entries, reached = entries[low : high + 1].astype(np.int64), reached[low : high + 1]
    wanted = entries[reached]
    if (wanted == wanted[0]).all():
        return symbols.constant(float(wanted[0]))
    if max(abs(int(wanted.min())), abs(int(wanted.max()))) >> LIMB:
        upper = looked_up(index, np.pad(entries >> LIMB, (low, 0)), np.pad(reached, (low, 0)))
        rest = entries & ((1 << LIMB) - 1)
        lower = looked_up(index, np.pad(rest, (low, 0)), np.pad(reached, (low, 0)))
        return upper * 2.0**LIMB + lower
    return index.lookup(np.where(reached, entries.astype(np.float64), np.nan))
