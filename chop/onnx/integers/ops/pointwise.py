"""Ops on each code alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chop.integers import (
    ChannelAffine,
    ClampCodes,
    Codes,
    ConstantCodes,
    LeakyReluCodes,
    Lookup,
    Refine,
    ReluCodes,
)
from chop.onnx.integers.registry import writes
from chop.onnx.integers.writer import BOOL, Writer, WrittenValue, numbers_dtype, smallest_dtype


@writes(ReluCodes)
def relu(
    w: Writer, op: ReluCodes, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    return w.larger(inputs[0], 0)


@writes(ClampCodes)
def clamp(
    w: Writer, op: ClampCodes, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    x, result = codes
    dtype = numbers_dtype(x.lowest, x.highest, result.lowest, result.highest)
    return w.clipped(w.cast(inputs[0], dtype), op.low, op.high)


@writes(LeakyReluCodes)
def leaky_relu(
    w: Writer, op: LeakyReluCodes, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    x, result = codes
    slopes = (op.numerator, op.denominator)
    dtype = numbers_dtype(x.lowest, x.highest, result.lowest, result.highest, *slopes)
    value = w.cast(inputs[0], dtype)
    negative = w.op("Less", value, 0, dtype=BOOL)
    below, above = (w.constant(slope, dtype) for slope in slopes)
    return w.op("Mul", value, w.op("Where", negative, below, above, dtype=dtype))


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


@writes(Refine)
def refine(
    w: Writer, op: Refine, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    most = int(op.factor.max())
    dtype = numbers_dtype(codes[-1].lowest, codes[-1].highest, most)
    return w.op("Mul", w.cast(inputs[0], dtype), op.factor)


@writes(ConstantCodes)
def constant(
    w: Writer, op: ConstantCodes, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    dtype = numbers_dtype(codes[-1].lowest, codes[-1].highest)
    return w.constant(op.value.unsqueeze(0), dtype, f"{w.node}.value")


@writes(ChannelAffine)
def channel_affine(
    w: Writer, op: ChannelAffine, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    x, _ = codes
    rest = [1] * (len(x.shape) - 1)
    multiplier, offset = (part.reshape(-1, *rest) for part in (op.multiplier, op.offset))
    reach = x.largest * int(multiplier.abs().max()) + int(offset.abs().max())
    dtype = numbers_dtype(-reach, reach, int(multiplier.abs().max()))
    product = w.op("Mul", w.cast(inputs[0], dtype), torch.as_tensor(multiplier))
    return w.op("Add", product, offset)
