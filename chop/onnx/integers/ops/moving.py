"""Ops that move codes, and the place of the largest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from chop.integers import ArgMaxCodes, Codes, PadCodes, PermuteCodes, PickCodes, ReshapeCodes
from chop.onnx.integers.registry import writes
from chop.onnx.integers.writer import INT64, Writer, WrittenValue, numbers_dtype


@writes(ReshapeCodes)
def reshape(
    w: Writer, op: ReshapeCodes, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    return w.shaped("Reshape", inputs[0], [0, *op.shape])  # 0 keeps the batch


@writes(PermuteCodes)
def permute(
    w: Writer, op: PermuteCodes, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    return w.op("Transpose", inputs[0], perm=[d % (len(codes[0].shape) + 1) for d in op.dims])


@writes(PickCodes)
def pick(
    w: Writer, op: PickCodes, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    flat = w.shaped("Reshape", inputs[0], [0, -1])  # 0 keeps the batch
    picked = w.shaped("Gather", flat, op.places.flatten().tolist(), axis=1)
    return w.shaped("Reshape", picked, [0, *op.places.shape])


@writes(PadCodes)
def pad(
    w: Writer, op: PadCodes, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    x, result = codes
    value = w.cast(inputs[0], numbers_dtype(x.lowest, x.highest, result.lowest, result.highest))
    rank = len(x.shape) + 1
    pairs = list(zip(op.pads[::2], op.pads[1::2], strict=True))  # of the last dimension first
    if op.mode == "constant":
        ends = [[0] * (rank - len(pairs)) + [pair[i] for pair in reversed(pairs)] for i in (0, 1)]
        sizes = w.constant(torch.tensor(ends[0] + ends[1]), INT64)
        return w.op("Pad", value, sizes, w.constant(op.code, value.dtype))
    for axis, (before, after) in enumerate(pairs, start=1):
        if before or after:
            size = x.shape[-axis]
            places = torch.arange(size, dtype=torch.float64).view(1, 1, size)
            moved = F.pad(places, (before, after), op.mode).long().flatten()
            value = w.shaped("Gather", value, moved.tolist(), axis=rank - axis)
    return value


@writes(ArgMaxCodes)
def argmax(
    w: Writer, op: ArgMaxCodes, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    return w.op("ArgMax", inputs[0], axis=op.dim, keepdims=int(op.keepdim), dtype=INT64)
