"""Ops with a meaning: the nodes that it is composed of."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from chop.integers import Codes
from chop.integers.builders import BoundsBuilder, Builder
from chop.integers.op import ComposedOp
from chop.onnx.integers.registry import writes
from chop.onnx.integers.writer import BOOL, Operand, Writer, WrittenValue, numbers_dtype


class OnnxBuilder(Builder[WrittenValue]):
    """Writes nodes, which compute in a dtype that holds all numbers of the op."""

    def __init__(self, w: Writer, bounds: BoundsBuilder) -> None:
        self.w, self.bounds = w, bounds
        self.dtype = numbers_dtype(*bounds.numbers)

    @property
    def rank(self) -> int:
        return self.bounds.rank

    def _cast(self, *operands: Operand) -> list[Operand]:
        return [self.w.cast(x, self.dtype) if isinstance(x, WrittenValue) else x for x in operands]

    def constant(self, numbers: Tensor) -> WrittenValue:
        return self.w.constant(numbers.unsqueeze(0), self.dtype, f"{self.w.node}.value")

    def max(self, x: WrittenValue, bound: int) -> WrittenValue:
        return self.w.larger(x, bound)

    def clamp(self, x: WrittenValue, low: int, high: int) -> WrittenValue:
        return self.w.clipped(self.w.cast(x, self.dtype), low, high)

    def multiply_by_sign(self, x: WrittenValue, negative: int, other: int) -> WrittenValue:
        x = self.w.cast(x, self.dtype)
        sign = self.w.op("Less", x, 0, dtype=BOOL)
        factors = (self.w.constant(factor, self.dtype) for factor in (negative, other))
        return self.w.op("Mul", x, self.w.op("Where", sign, *factors, dtype=self.dtype))

    def add(self, x: WrittenValue, y: Operand) -> WrittenValue:
        return self.w.op("Add", *self._cast(x, y))

    def subtract(self, x: WrittenValue, y: Operand) -> WrittenValue:
        return self.w.op("Sub", *self._cast(x, y))

    def multiply(self, x: WrittenValue, y: Operand) -> WrittenValue:
        return self.w.op("Mul", *self._cast(x, y))

    def concat(self, values: Sequence[WrittenValue], dim: int) -> WrittenValue:
        return self.w.op("Concat", *self._cast(*values), axis=dim)


@writes(ComposedOp)
def composed(
    w: Writer, op: ComposedOp, inputs: Sequence[WrittenValue], codes: Sequence[Codes]
) -> WrittenValue:
    bounds = BoundsBuilder(codes[:-1])
    op.meaning(bounds, *bounds.inputs)
    return op.meaning(OnnxBuilder(w, bounds), *inputs)
