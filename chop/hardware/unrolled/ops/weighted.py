"""Sums of products with constant weights: adder graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.hardware.estimate.weights import signed_digits
from chop.hardware.unrolled import symbols
from chop.hardware.unrolled.ops.windows import OUTSIDE, windows
from chop.hardware.unrolled.progress import adders_done
from chop.hardware.unrolled.registry import Array, unrolls
from chop.integers import Codes, ConvCodes, LinearCodes
from chop.integers.ops.weighted import WeightedOp

# inputs times the square of powers of two: alkaid's time for a matrix, about 5 s, in which it shows
# no progress and Ctrl-C has no effect
MAX_WORK = 5e10


def digits(numbers: Tensor) -> int:
    """Return how many powers of two the numbers are sums or differences of, in all."""
    return int(signed_digits(numbers.numpy()).sum())


def linear_adders(op: LinearCodes, codes: Sequence[Codes]) -> int:
    return digits(op.weight) * math.prod(codes[-1].shape[:-1])


def convolution_adders(op: ConvCodes, codes: Sequence[Codes]) -> int:
    return digits(op.weight) * math.prod(codes[-1].shape[1:])


@unrolls(LinearCodes, adders=linear_adders, starts_layer=True)
def linear(op: LinearCodes, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    (x,) = inputs
    rows = np.asarray(x).reshape(-1, x.shape[-1])
    solver = Solver(keep=len(rows) > 1)
    sums = [s for row in rows for s in solver.products(op.weight.T, list(row))]
    return with_bias(op, symbols.shaped(sums, codes[-1].shape))


@unrolls(ConvCodes, adders=convolution_adders, starts_layer=True)
def convolution(op: ConvCodes, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    (x,) = inputs
    result = codes[-1].shape
    kernel = op.weight.shape[2:]
    settings = (op.stride, op.padding, op.dilation)
    taken = windows(x.shape[1:], kernel, *settings, result[1:])
    solver = Solver(keep=len(taken) > 1)
    channels = np.asarray(x).reshape(op.groups, -1, int(np.prod(x.shape[1:])))
    weights = op.weight.reshape(op.groups, -1, *op.weight.shape[1:]).flatten(3)
    sums = np.empty((op.groups, weights.shape[1], len(taken)), object)
    for group, weight in enumerate(weights):
        for number, places in enumerate(taken):
            inside = places != OUTSIDE
            row = channels[group][:, places[inside]].ravel()
            # outputs, then channels and places of the window
            matrix = weight[..., torch.from_numpy(inside)].flatten(1)
            sums[group, :, number] = solver.products(matrix.T, list(row))
    return with_bias(op, symbols.shaped(sums.ravel(), result))


def with_bias(op: WeightedOp, sums: Array) -> Array:
    """Return the sums on the grid of the result, plus the bias."""
    shifted = (s * 2.0**op.shift for s in symbols.flat(sums))
    if op.bias is None:
        return symbols.shaped(shifted, sums.shape)
    bias = op.along_channels(op.bias).expand(tuple(sums.shape)).flatten().tolist()
    pairs = zip(shifted, bias, strict=True)
    return symbols.shaped((symbols.plus(s, b) for s, b in pairs), sums.shape)


class Solver:
    """Adder graphs for products with constant matrices; equal ones are solved once."""

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self.solved: dict[tuple[Any, ...], Any] = {}

    def products(self, weight: Tensor, row: list[Any]) -> list[Any]:
        """Return the sums of products of symbols with the columns of a matrix.

        alkaid reads several inputs of one bit as the address of a table, also those whose only bit
        is a sign, and then finds negative addresses: it gets minus such an input instead. It fails
        where no input that varies has a weight, and so it gets none that is constant.
        """
        ends = [int(s.low) if s.low == s.high else 0 for s in row]
        offsets = (torch.tensor(ends, dtype=torch.int64) @ weight.long()).tolist()
        varying = [i for i, s in enumerate(row) if s.low != s.high]
        weight, row = weight[varying], [row[i] for i in varying]
        signs = torch.tensor([symbols.is_sign(s) for s in row], dtype=torch.bool)
        row = [symbols.negated_sign(s) if symbols.is_sign(s) else s for s in row]
        weight = torch.where(signs[:, None], -weight, weight)
        parts = [
            [symbols.fresh(s) * 2.0**shift if shift else s for s in self._sums(limb, row)]
            for limb, shift in symbols.limbs(weight.numpy())
        ]
        if not parts:
            return [symbols.constant(offset) for offset in offsets]
        columns = zip(zip(*parts, strict=True), offsets, strict=True)
        return [symbols.plus(symbols.total(column), offset) for column, offset in columns]

    def _sums(self, matrix: symbols.Numbers, row: list[Any]) -> list[Any]:
        """Return the sums of a matrix, of which a large one is solved part by part."""
        count = signed_digits(matrix.astype(np.int64)).sum(0)
        parts = math.ceil(count.sum() * math.sqrt(len(row) / MAX_WORK))
        sums = []
        for columns in np.array_split(np.arange(matrix.shape[1]), min(max(1, parts), len(count))):
            sums += self._solve(np.ascontiguousarray(matrix[:, columns]), row)
            adders_done(int(count[columns].sum()))
        return sums

    def _solve(self, matrix: symbols.Numbers, row: list[Any]) -> list[Any]:
        from alkaid.trace import FVArray, trace

        if not self.keep:
            return symbols.flat(symbols.shaped(row, (len(row),)) @ matrix)
        kinds = tuple((s.low, s.high, s.step, s.latency) for s in row)
        key = (matrix.shape, matrix.tobytes(), kinds)
        if key not in self.solved:
            low, high, step, latency = (np.array(part) for part in zip(*kinds, strict=True))
            new = FVArray.from_lhs(low, high, step, symbols.HARDWARE, latency)
            self.solved[key] = trace(new, new @ matrix, optimize=False)
        return list(self.solved[key](np.array(row, object), quantize=False))
