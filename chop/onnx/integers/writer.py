"""Integers as ONNX values: int32 where all numbers that occur fit, and int64 elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.onnx.builder import ModelBuilder

__all__ = [
    "BOOL",
    "DOUBLE",
    "INT32",
    "INT64",
    "SINGLE",
    "Operand",
    "Writer",
    "WrittenValue",
    "numbers_dtype",
    "smallest_dtype",
]

BOOL, SINGLE, DOUBLE = (np.dtype(t) for t in (np.bool_, np.float32, np.float64))
INT8, INT16, INT32, INT64 = (np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
EXACT_SUM = 2**53  # below, ReduceSum of onnxruntime 1.31 is exact for int64


@dataclass(frozen=True)
class WrittenValue:
    """The result of an ONNX node, or an input of the model."""

    name: str
    dtype: np.dtype[Any]


Operand = WrittenValue | Tensor | int  # a tensor or a number becomes a constant


def numbers_dtype(*numbers: int) -> np.dtype[Any]:
    """Return int32 if it holds all of the numbers, and int64 otherwise."""
    return INT32 if _fits(numbers, INT32) else INT64


def smallest_dtype(*numbers: int) -> np.dtype[Any]:
    """Return the smallest dtype for a table of the numbers in a file."""
    return next(dtype for dtype in (INT8, INT16, INT32, INT64) if _fits(numbers, dtype))


def _fits(numbers: Sequence[int], dtype: np.dtype[Any]) -> bool:
    info = np.iinfo(dtype)
    return info.min <= min(numbers) and max(numbers) <= info.max


class Writer:
    """Writes nodes; `node` is the node of the integer graph that they belong to."""

    def __init__(self, builder: ModelBuilder) -> None:
        self.builder = builder
        self.node = ""
        self._casts: dict[tuple[str, str], WrittenValue] = {}
        self._finished: set[str] = set()

    def op(
        self, kind: str, *operands: Operand, dtype: np.dtype[Any] | None = None, **attributes: Any
    ) -> WrittenValue:
        """Append a node; constants have the dtype of its first value, and so has its result.

        `dtype` is the one of the result, if that differs.
        """
        like = next(operand.dtype for operand in operands if isinstance(operand, WrittenValue))
        names = [self._operand(operand, like).name for operand in operands]
        result = self.builder.unique(f"{self.node}_{kind.lower()}")
        return WrittenValue(
            self.builder.add(kind, *names, result=result, **attributes), dtype or like
        )

    def _operand(self, operand: Operand, dtype: np.dtype[Any]) -> WrittenValue:
        return operand if isinstance(operand, WrittenValue) else self.constant(operand, dtype)

    def constant(
        self, numbers: Tensor | int | float, dtype: np.dtype[Any], name: str | None = None
    ) -> WrittenValue:
        """Return a constant, which the dtype must hold."""
        array = np.asarray(torch.as_tensor(numbers).detach().cpu().numpy())
        cast = array.astype(dtype)
        assert np.array_equal(cast.astype(array.dtype), array), f"{dtype} cannot hold {array}"
        return WrittenValue(self.builder.constant(cast, name), dtype)

    def cast(self, x: WrittenValue, dtype: np.dtype[Any]) -> WrittenValue:
        """Return a value in another dtype, which must hold it."""
        if x.dtype == dtype:
            return x
        key = (x.name, dtype.name)
        if key not in self._casts:
            from onnx import helper

            to = helper.np_dtype_to_tensor_dtype(dtype)
            self._casts[key] = self.op("Cast", x, dtype=dtype, to=to)
        return self._casts[key]

    def shaped(
        self, kind: str, x: WrittenValue, sizes: Sequence[int] | Tensor, **attributes: Any
    ) -> WrittenValue:
        """Append a node whose second input is a list of sizes, axes or places."""
        return self.op(kind, x, self.constant(torch.as_tensor(sizes), INT64), **attributes)

    def larger(self, x: WrittenValue, other: Operand) -> WrittenValue:
        return self._chosen("Max", "Greater", x, other)

    def smaller(self, x: WrittenValue, other: Operand) -> WrittenValue:
        return self._chosen("Min", "Less", x, other)

    def _chosen(self, kind: str, comparison: str, x: WrittenValue, other: Operand) -> WrittenValue:
        # Max and Min of onnxruntime 1.31 are wrong for int64 from 2^31 to 2^32 and beyond
        if x.dtype != INT64:
            return self.op(kind, x, other)
        constant = self._operand(other, x.dtype)
        return self.op(
            "Where", self.op(comparison, x, constant, dtype=BOOL), x, constant, dtype=INT64
        )

    def clipped(self, x: WrittenValue, low: Tensor | int, high: Tensor | int) -> WrittenValue:
        """Return x within bounds, one pair for all or one for each element."""
        info = np.iinfo(x.dtype)
        low, high = (torch.as_tensor(end).clamp(info.min, info.max) for end in (low, high))
        if low.numel() == high.numel() == 1 and x.dtype != INT64:
            return self.op("Clip", x, low.reshape(()), high.reshape(()))
        return self.smaller(self.larger(x, low), high)

    def total(self, x: WrittenValue, axis: int, size: int, reach: int) -> WrittenValue:
        """Return sums along an axis, which stays with a size of 1; `reach` bounds the sums."""
        if reach < EXACT_SUM:
            return self.shaped("ReduceSum", x, [axis], keepdims=1)
        places = (self.shaped("Gather", x, [place], axis=axis) for place in range(size))
        return reduce(lambda one, other: self.op("Add", one, other), places)

    def finished(self, x: WrittenValue, name: str) -> WrittenValue:
        """Return the result of a node of the integer graph, under the node's name if it is free."""
        name = self.builder.unique(name)
        last = self.builder.nodes[-1] if self.builder.nodes else None
        self._finished.add(name)
        if last is None or list(last.output) != [x.name] or x.name in self._finished:
            return WrittenValue(self.builder.add("Identity", x.name, result=name), x.dtype)
        last.output[0] = last.name = name
        self._casts = {key: cast for key, cast in self._casts.items() if cast.name != x.name}
        return WrittenValue(name, x.dtype)
