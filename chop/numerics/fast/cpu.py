"""Rounding on a CPU: by the C++ library, or in pieces that fit the cache.

The library is built in the background once a process has rounded many numbers, and cached for
later ones (see `chop.numerics.compiled`). Until then large tensors are rounded piece by piece.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chop.numerics.compiled import KERNELS
from chop.numerics.fast import mode
from chop.numerics.fast.plans import DTYPES, PlannedFormat, RoundingPlan, arranged, most, plan_of
from chop.numerics.fast.pointers import address, in_memory_order
from chop.numerics.fast.tiling import tiling_of
from chop.numerics.means import rows_of

THREAD = 2**16  # elements that take about as long as starting a thread
PIECE = 2**15  # elements per thread with temporaries that fit the cache
MIN_PIECES = 4


def round_on_cpu(fmt: PlannedFormat, x: Tensor) -> Tensor | None:
    if x.numel() == 0 or x.dtype not in DTYPES:
        return None
    plan = plan_of(fmt, x.device)
    if plan is None:
        return None
    if KERNELS.ready(x.numel(), wait=mode.current == "on"):
        return _by_library(plan, fmt, x.detach())
    return None if plan.rows else _in_pieces(plan, fmt, x)


def _by_library(plan: RoundingPlan, fmt: PlannedFormat, x: Tensor) -> Tensor | None:
    """Round by the C++ library, half precision in float32; None if the shape is unsupported."""
    source, result = arranged(plan, x.float())
    shape: Sequence[int] | None = (x.numel(),)
    if plan.blocks:
        shape = tiling_of(fmt, x.shape)
    elif plan.rows:
        shape = rows_of(x.shape)
    if shape is None:
        return None
    # threads start one after the other: the square root minimises starting plus working time
    threads = max(1, min(torch.get_num_threads(), math.isqrt(x.numel() // THREAD)))
    rule, rows = KERNELS.rule(plan.rule, plan.kind), map(in_memory_order, (source, result))
    count = math.prod(shape[:3])  # what follows are sizes of blocks
    found = [
        address(plan.rule, *each, (count,)) for each in zip(("x", "result"), rows, strict=True)
    ]
    rule(*found, *shape, plan.packed, threads)
    if x.dtype == torch.float32:
        return result
    limit = most(plan, x.dtype)
    return result.clamp_(-limit, limit).to(x.dtype)


def _in_pieces(plan: RoundingPlan, fmt: PlannedFormat, x: Tensor) -> Tensor | None:
    """Round piece by piece, so that the format's temporaries stay in the cache."""
    size = PIECE * max(2, torch.get_num_threads())
    if fmt.light or x.numel() < MIN_PIECES * size or not x.is_contiguous():
        return None
    cut = _cut(fmt, x, size, plan.blocks)
    if cut is None:
        return None
    piecewise, matrix, rows = cut
    result = torch.empty_like(x)
    places = result.view(matrix.shape).split(rows)
    for piece, place in zip(matrix.split(rows), places, strict=True):
        place.copy_(piecewise.rounded(piece))
    return result


def _cut(fmt: Any, x: Tensor, size: int, blocks: bool) -> tuple[Any, Tensor, int] | None:
    """The format of a piece, `x` in a shape that divides into pieces, and a piece's length."""
    if not blocks:
        return fmt, x.detach().view(-1), size
    t = tiling_of(fmt, x.shape)
    if t is None or not hasattr(fmt, "block_size") or (t.samples > 1 and t.m % t.block_m):
        return None
    block = (t.block_m, t.block_n)
    shape = (t.samples * t.m, t.n)
    if t.block_m == 1 and t.n % t.block_n == 0:
        shape = (-1, t.block_n)
    matrix = x.detach().view(shape)
    rows = max(1, size // (t.block_m * matrix.shape[1])) * t.block_m
    if rows >= matrix.shape[0]:
        return None
    return dataclasses.replace(fmt, block_size=block, batched=False), matrix, rows
