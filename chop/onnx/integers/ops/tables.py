"""Tables, and layers of truth tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from chop.integers import Codes, Lookup, NeuronTables
from chop.onnx.integers.registry import writes
from chop.onnx.integers.writer import Writer, WrittenValue, numbers_dtype, smallest_dtype


@writes(Lookup)
def lookup(
    w: Writer, op: Lookup, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    x, result = codes
    entries = op.entries[x.lowest - op.lowest : x.highest - op.lowest + 1]
    (value,) = inputs
    places = w.op("Sub", value, x.lowest) if x.lowest else value
    dtype = smallest_dtype(int(entries.min()), int(entries.max()))
    table = w.constant(entries, dtype, f"{w.node}.table")
    found = w.op("Gather", table, places)
    return w.cast(found, numbers_dtype(result.lowest, result.highest))


@writes(NeuronTables)
def neuron_tables(
    w: Writer, op: NeuronTables, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    x, result = codes
    entries = op.tables.flatten()
    dtype = numbers_dtype(x.lowest, x.highest, len(entries))
    flat = w.shaped("Reshape", w.cast(inputs[0], dtype), [0, math.prod(x.shape)])
    gathered = w.shaped("Gather", flat, op.reads.clamp(min=0), axis=1)  # [batch, results, inputs]
    # two's complement; a place that reads nothing stands for the code 0
    digits = w.op("BitwiseAnd", gathered, torch.where(op.reads < 0, 0, (1 << op.width) - 1))
    places = torch.ones(op.num_inputs).long() << torch.arange(op.num_inputs) * op.width
    index = w.total(w.op("Mul", digits, places), 2, op.num_inputs, len(entries))
    index = w.op("Add", w.shaped("Squeeze", index, [2]), op.chosen << op.width * op.num_inputs)
    kind = smallest_dtype(int(entries.min()), int(entries.max()))
    found = w.op("Gather", w.constant(entries, kind, f"{w.node}.tables"), index)
    shaped = w.shaped("Reshape", found, [0, *op.shape])
    return w.cast(shaped, numbers_dtype(result.lowest, result.highest))
