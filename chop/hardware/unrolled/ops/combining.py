"""Ops on several values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from chop.hardware.unrolled import symbols
from chop.hardware.unrolled.registry import Array, unrolls
from chop.integers import AddCodes, Codes, ConcatCodes, MultiplyCodes, SubtractCodes


@unrolls(AddCodes)
def add(op: AddCodes, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    return symbols.each(symbols.plus, *inputs)


@unrolls(SubtractCodes)
def subtract(op: SubtractCodes, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    return symbols.each(lambda a, b: symbols.plus(a, -b), *inputs)


def product_adders(op: MultiplyCodes, codes: Sequence[Codes]) -> int:
    one, other, result = codes
    return math.prod(result.shape) * min(one.width, other.width)


@unrolls(MultiplyCodes, adders=product_adders)
def multiply(op: MultiplyCodes, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    return symbols.each(symbols.multiplied, *inputs)


@unrolls(ConcatCodes)
def concat(op: ConcatCodes, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    axis = op.dim - 1 if op.dim > 0 else op.dim
    joined = np.concatenate([np.asarray(x) for x in inputs], axis)
    return symbols.shaped(joined.ravel(), joined.shape)
