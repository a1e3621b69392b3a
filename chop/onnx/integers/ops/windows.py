"""Pools: the largest code, or the sum, of windows.

onnxruntime has no pools for int32 and int64. A window is the product of its sides, so that each
axis is pooled alone: the maximum, or the sum, of shifted copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from chop.integers import AvgPoolCodes, Codes, MaxPoolCodes
from chop.onnx.integers.registry import writes
from chop.onnx.integers.writer import INT64, Writer, WrittenValue, numbers_dtype


@dataclass(frozen=True)
class Pool:
    """How windows are reduced: two values to one, a whole axis to one, and the code of padding."""

    pair: Callable[[WrittenValue, WrittenValue], WrittenValue]
    whole: (
        Callable[[WrittenValue, int, int], WrittenValue] | None
    )  # of a value, an axis, and its size
    padding_code: int


@writes(MaxPoolCodes)
def max_pool(
    w: Writer, op: MaxPoolCodes, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    def whole(x: WrittenValue, axis: int, size: int) -> WrittenValue:
        return w.shaped("ReduceMax", x, [axis], keepdims=1)

    # padding of the lowest code never wins; ReduceMax has the fault that Max has for int64
    short = inputs[0].dtype != INT64
    pool = Pool(w.larger, whole if short else None, codes[0].lowest)
    return _pooled(w, op, inputs[0], codes, pool, op.dilation)


@writes(AvgPoolCodes)
def avg_pool(
    w: Writer, op: AvgPoolCodes, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    def pair(one: WrittenValue, other: WrittenValue) -> WrittenValue:
        return w.op("Add", one, other)

    def whole(x: WrittenValue, axis: int, size: int) -> WrittenValue:
        return w.total(x, axis, size, op.reach)

    value = w.cast(inputs[0], numbers_dtype(-op.reach, op.reach))
    return _pooled(w, op, value, codes, Pool(pair, whole, 0), (1,) * len(op.kernel))


def _pooled(
    w: Writer,
    op: MaxPoolCodes | AvgPoolCodes,
    value: WrittenValue,
    codes: Sequence[Codes],
    pool: Pool,
    dilation: Sequence[int],
) -> WrittenValue:
    x, result = codes
    first = len(x.shape) - len(op.kernel) + 1
    windows = zip(op.kernel, op.stride, op.padding, dilation, strict=True)
    for axis, window in enumerate(windows, start=first):
        value = _along(w, pool, value, axis, (x.shape[axis - 1], result.shape[axis - 1]), window)
    return value


def _along(
    w: Writer,
    pool: Pool,
    x: WrittenValue,
    axis: int,
    sizes: tuple[int, int],
    window: tuple[int, int, int, int],
) -> WrittenValue:
    """Pool along an axis; `sizes` before and after, `window` is size, stride, padding, dilation."""
    (size, count), (kernel, stride, padding, dilation) = sizes, window
    covers = kernel == size and count == 1 and not padding and dilation == 1
    if covers and pool.whole is not None:
        return pool.whole(x, axis, size)
    last = (count - 1) * stride + (kernel - 1) * dilation + 1 - padding  # windows end here
    if padding or last > size:
        ends = w.constant(torch.tensor([padding, max(0, last - size)]), INT64)
        axes = w.constant(torch.tensor([axis]), INT64)
        x = w.op("Pad", x, ends, w.constant(pool.padding_code, x.dtype), axes)
    parts = []
    for start in range(0, kernel * dilation, dilation):
        bounds = ([start], [start + (count - 1) * stride + 1], [axis], [stride])
        places = (w.constant(torch.tensor(numbers), INT64) for numbers in bounds)
        parts.append(w.op("Slice", x, *places))
    return functools.reduce(pool.pair, parts)
