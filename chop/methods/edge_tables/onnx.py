"""Layers of truth tables on edges."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chop.integers import Codes, Scale, Word
from chop.integers.mixed import MixedWord
from chop.methods.edge_tables.ops import EdgeRounding, EdgeTables, QuantizeFeatures
from chop.onnx.integers.ops.quantize import quantize
from chop.onnx.integers.registry import writes
from chop.onnx.integers.rounding import Bounded, brought_back, quotient, raised
from chop.onnx.integers.writer import Writer, WrittenValue, numbers_dtype, smallest_dtype


@writes(QuantizeFeatures)
def quantize_features(
    w: Writer, op: QuantizeFeatures, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    word = op.word.codes(op.shape, op.word.lows, op.word.highs)
    whole = quantize(w, op, inputs, [word])
    assert op.low is not None
    assert op.high is not None
    return w.clipped(whole, op.low, op.high)


@writes(EdgeTables)
def edge_tables(
    w: Writer, op: EdgeTables, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    """Each output has as many edges as the one with most; those that it lacks add an entry 0."""
    x, _ = codes
    (value,) = inputs
    reach = _reach(op)
    dtype = numbers_dtype(-reach, reach)
    if not len(op.reads):
        nothing = w.total(w.op("Mul", value, 0), len(x.shape), x.shape[-1], 0)
        return w.op("Add", w.cast(nothing, dtype), op.bias)
    edges = _edges_by_output(op)  # [outputs, edges], -1 where there is none
    reads = op.reads[edges.clamp(min=0)]
    gathered = w.shaped("Gather", value, reads, axis=len(x.shape))
    places = _places(w, op, Bounded(gathered, x.lowest, x.highest), edges.clamp(min=0))
    size = op.tables.shape[1]
    entries = torch.cat([op.tables.flatten(), torch.zeros(size, dtype=torch.int64)])
    starts = torch.where(edges < 0, len(op.reads), edges) * size
    wide = numbers_dtype(len(entries))
    index = w.op("Add", w.cast(places, wide), starts)
    kind = smallest_dtype(int(entries.min()), int(entries.max()))
    found = w.op("Gather", w.constant(entries, kind, f"{w.node}.tables"), index)
    axis = len(x.shape) + 1
    sums = w.total(w.cast(found, dtype), axis, edges.shape[1], reach)
    return w.op("Add", w.shaped("Squeeze", sums, [axis]), op.bias)


def _reach(op: EdgeTables) -> int:
    """Return a bound of the sums of any entries."""
    most = torch.zeros_like(op.bias)
    if len(op.reads):
        most = most.index_add(0, op.writes, op.tables.abs().amax(1))
    return int(most.max()) + int(op.bias.abs().max())


def _edges_by_output(op: EdgeTables) -> Tensor:
    rows: list[list[int]] = [[] for _ in op.bias]
    for edge, output in enumerate(op.writes.tolist()):
        rows[output].append(edge)
    most = max(len(row) for row in rows)
    return torch.tensor([row + [-1] * (most - len(row)) for row in rows], dtype=torch.int64)


def _places(w: Writer, op: EdgeTables, x: Bounded, edges: Tensor) -> WrittenValue:
    """Return the places in their tables of the codes that edges read."""
    rounding = op.rounding
    first, lowest = rounding.first[edges], rounding.lowest[edges]
    last = first + rounding.size[edges] - 1
    assert op.exponent is not None
    shift = rounding.exponent[edges] - op.exponent[edges]
    word = _word(rounding, lowest, last)
    x = raised(w, x, (-shift).clamp(min=0), word)
    rounded = quotient(w, x, torch.ones_like(shift), shift.clamp(min=0), rounding.rounding)
    return w.op("Sub", brought_back(w, rounded, word), first)


def _word(rounding: EdgeRounding, low: Tensor, high: Tensor) -> Word:
    """Return the format that edges round to."""
    width = int(torch.maximum(-low, high + 1).max()).bit_length() + 1
    return MixedWord(
        int(low.min()),
        int(high.max()),
        Scale.power(0),
        width,
        rounding.signed,
        rounding.rounding,
        rounding.overflow,
        low_codes=low,
        high_codes=high,
    )
