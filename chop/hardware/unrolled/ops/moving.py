"""Ops that move codes, pool them, or find the largest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chop.hardware.unrolled import symbols
from chop.hardware.unrolled.ops.windows import OUTSIDE, windows
from chop.hardware.unrolled.registry import Array, unrolls
from chop.integers import ArgMaxCodes, AvgPoolCodes, Codes, MaxPoolCodes, PadCodes
from chop.integers.op import IntegerOp, MovingOp


def nothing(op: IntegerOp, codes: Sequence[Codes]) -> int:
    return 0


def window_adders(op: MaxPoolCodes | AvgPoolCodes, codes: Sequence[Codes]) -> int:
    return math.prod(codes[-1].shape) * math.prod(op.kernel)


@unrolls(MovingOp, adders=nothing)
def move(op: MovingOp, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    row = symbols.flat(inputs[0])
    places = op.run(symbols.places(codes[0].shape))[0]
    return symbols.shaped((row[i] for i in places.flatten().tolist()), codes[-1].shape)


@unrolls(PadCodes, adders=nothing)
def pad(op: PadCodes, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    # a place beyond the last stands for the padding
    fill = inputs[0].size
    row = [*symbols.flat(inputs[0]), symbols.constant(op.code)]
    places = replace(op, code=fill).run(symbols.places(codes[0].shape))[0]
    return symbols.shaped((row[i] for i in places.flatten().tolist()), codes[-1].shape)


@unrolls(MaxPoolCodes, adders=window_adders)
def max_pool(op: MaxPoolCodes, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    return _pooled(op, op.dilation, inputs[0], codes[-1], symbols.largest)


@unrolls(AvgPoolCodes, adders=window_adders)
def avg_pool(op: AvgPoolCodes, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    return _pooled(op, [1] * len(op.kernel), inputs[0], codes[-1], symbols.total)


def _pooled(
    op: MaxPoolCodes | AvgPoolCodes,
    dilation: Sequence[int],
    x: Array,
    result: Codes,
    combine: Callable[[Sequence[Any]], Any],
) -> Array:
    settings = (op.kernel, op.stride, op.padding, dilation)
    rank = len(op.kernel)
    taken = windows(x.shape[-rank:], *settings, result.shape[-rank:])
    channels = np.asarray(x).reshape(-1, int(np.prod(x.shape[-rank:])))
    pooled = (
        combine(list(channel[places[places != OUTSIDE]]))
        for channel in channels
        for places in taken
    )
    return symbols.shaped(pooled, result.shape)


def argmax_adders(op: ArgMaxCodes, codes: Sequence[Codes]) -> int:
    return math.prod(codes[0].shape)


@unrolls(ArgMaxCodes, adders=argmax_adders)
def arg_max(op: ArgMaxCodes, inputs: Sequence[Array], codes: Sequence[Codes]) -> Array:
    rows = np.moveaxis(np.asarray(inputs[0]), op.dim - 1 if op.dim > 0 else op.dim, -1)
    flat = rows.reshape(-1, rows.shape[-1])
    return symbols.shaped((_first_largest(list(row)) for row in flat), codes[-1].shape)


def _first_largest(row: list[Any]) -> Any:
    """Return the place of the largest symbol; of equal ones, the first."""

    def better(one: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any]:
        (a, place), (b, other_place) = one, other
        below = a - b  # negative if the second is larger
        if below.low >= 0:
            return one
        if below.high < 0:
            return other
        return below.msb_mux(b, a), below.msb_mux(other_place, place)

    return symbols.tree(better, [(s, symbols.constant(i)) for i, s in enumerate(row)])[1]
