"""Ops with a meaning: the symbols that it is composed of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from chop.hardware.unrolled import symbols
from chop.hardware.unrolled.ops.weighted import digits
from chop.hardware.unrolled.registry import Array, unrolls
from chop.integers import ChannelAffine, Codes, MultiplyCodes
from chop.integers.builders import Builder
from chop.integers.op import ComposedOp


class SymbolBuilder(Builder[Array]):
    """Computes in symbols, which have no batch."""

    def __init__(self, inputs: Sequence[Array]) -> None:
        self.inputs = inputs

    @property
    def rank(self) -> int:
        return max(len(x.shape) for x in self.inputs)

    def constant(self, numbers: Tensor) -> Array:
        return symbols.constants(numbers)

    def max(self, x: Array, bound: int) -> Array:
        return symbols.each(lambda s: symbols.at_least(s, bound) if bound else s.relu(), x)

    def clamp(self, x: Array, low: int, high: int) -> Array:
        return symbols.each(lambda s: symbols.clamped(s, low, high), x)

    def multiply_by_sign(self, x: Array, negative: int, other: int) -> Array:
        def chosen(symbol: Any) -> Any:
            below, above = (symbols.affine(symbol, n, 0) for n in (negative, other))
            if symbol.low >= 0:
                return above
            return symbol.msb_mux(below, above) if symbol.high >= 0 else below

        return symbols.each(chosen, x)

    def add(self, x: Array, y: Array | Tensor | int) -> Array:
        return symbols.each(symbols.plus, x, _integers(y))

    def subtract(self, x: Array, y: Array | Tensor | int) -> Array:
        return symbols.each(lambda a, b: symbols.plus(a, -b), x, _integers(y))

    def multiply(self, x: Array, y: Array | Tensor | int) -> Array:
        return symbols.each(symbols.multiplied, x, _integers(y))

    def concat(self, values: Sequence[Array], dim: int) -> Array:
        joined = np.concatenate([np.asarray(x) for x in values], dim - 1 if dim > 0 else dim)
        return symbols.shaped(joined.ravel(), joined.shape)


def _integers(y: Array | Tensor | int) -> Array:
    """Return an operand as an array of symbols, or of integers of any size."""
    if not isinstance(y, Tensor | int):
        return y
    return np.array(y.tolist() if isinstance(y, Tensor) else y, dtype=object)


def product_adders(op: MultiplyCodes, codes: Sequence[Codes]) -> int:
    one, other, result = codes
    return math.prod(result.shape) * min(one.width, other.width)


def affine_adders(op: ChannelAffine, codes: Sequence[Codes]) -> int:
    return digits(op.multiplier) * math.prod(codes[-1].shape[1:])


@unrolls(ComposedOp)
@unrolls(MultiplyCodes, adders=product_adders)
@unrolls(ChannelAffine, adders=affine_adders)
def composed(op: ComposedOp, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    return op.meaning(SymbolBuilder(inputs), *inputs)
