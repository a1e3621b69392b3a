"""Rounding on CUDA by Triton kernels, compiled once per rule and dtype when first called."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from chop.numerics.fast import mode
from chop.numerics.fast.plans import DTYPES, PlannedFormat, RoundingPlan, arranged, most, plan_of
from chop.numerics.fast.tiling import (
    TILE,
    Tiles,
    Tiling,
    part_tiles,
    power_of_two,
    tiling_of,
    whole_tiles,
)
from chop.numerics.means import lift, mean_of, rows_of
from chop.numerics.scratch import is_plain

logger = logging.getLogger(__name__)

MAX_WARPS = 16
STEPS = 16  # tiles of a large block that one program reads to find the largest element
LONG_ROW = 2**14  # longest row that one program takes in pieces that are re-read from the cache
LONGEST_ROW, MANY_ROWS = 2**17, 2**9  # the same, if at least so many rows run at once
PROBE = RoundingPlan("integer", (16.0, -128.0, 127.0, 1 / 16))  # the plan of Integer(8, 4)

_broken = False  # Triton is installed but cannot compile


@functools.cache
def _kernels() -> Any:
    """Return the module of Triton kernels, or None without Triton."""
    if importlib.util.find_spec("triton") is None:
        logger.debug("no Triton: formats run as plain torch operations")
        return None
    return importlib.import_module("chop.numerics.kernels.rounding")


@functools.cache
def _rule_function(name: str) -> Any:
    return getattr(importlib.import_module("chop.numerics.kernels.rules"), name)


def runs_kernels(x: Tensor) -> bool:
    """Return whether Triton works for this tensor and is not switched off."""
    return mode.current != "off" and is_plain(x) and x.is_cuda and _works(x.device) and not _broken


@functools.cache
def _works(device: torch.device) -> bool:
    if _broken or _kernels() is None:
        return False
    return launch(PROBE, None, torch.zeros(1, device=device)) is not None


def rule_of(fmt: PlannedFormat, like: Tensor) -> tuple[str, bool] | None:
    """Return the key that formats share if `Slices` can round them together, or None."""
    if like.dtype not in DTYPES or not runs_kernels(like):
        return None
    plan = plan_of(fmt, like.device)
    return (plan.rule, plan.infinite) if plan is not None and plan.kind == "elements" else None


class Slices:
    """Formats of one rule on CUDA, each for a slice of a tensor, in one launch."""

    def __init__(self, formats: Sequence[PlannedFormat], like: Tensor) -> None:
        plans = [plan_of(fmt, like.device) for fmt in formats]
        known = [plan for plan in plans if plan is not None]
        self.plan, self.count = known[0], len(known)
        self.table = torch.tensor([plan.padded for plan in known], device=like.device)

    def __call__(self, x: Tensor, dim: int) -> Tensor:
        """Round a tensor whose slices lie along `dim`."""
        x = x.detach().contiguous()
        result = torch.empty_like(x)
        if x.numel():
            inner = math.prod(x.shape[dim + 1 :])
            on_device_of(x, functools.partial(self._launch, x, result, inner))
        return result

    def _launch(self, x: Tensor, result: Tensor, inner: int) -> None:
        kernels, size = _kernels(), min(SIZE, power_of_two(inner))
        kernels.round_slices[(x.numel() // inner, -(-inner // size))](
            x, result, inner, self.count, self.table, most(self.plan, x.dtype),
            SIZE=size, num_warps=WARPS if size >= SIZE else 1, **_rule(self.plan),
        )  # fmt: skip


def round_on_cuda(fmt: PlannedFormat, x: Tensor) -> Tensor | None:
    if _broken or x.dtype not in DTYPES or x.numel() == 0 or _kernels() is None:
        return None
    plan = plan_of(fmt, x.device)
    return None if plan is None else launch(plan, fmt, x.detach())


def launch(plan: RoundingPlan, fmt: PlannedFormat | None, x: Tensor) -> Tensor | None:
    """Round by a kernel; return None if the shape is unsupported or the kernel cannot compile."""
    x, result = arranged(plan, x)
    if plan.blocks:
        work = _block_work(plan, fmt, x, result)
    elif plan.rows:
        work = functools.partial(_round_rows, plan, x, result)
    else:
        work = functools.partial(_round_elements, plan, x, result)
    if work is None or not _compiled(work, x):
        return None
    return result


def _compiled(work: Callable[[], None], x: Tensor) -> bool:
    global _broken
    try:
        on_device_of(x, work)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        _broken = True
        logger.debug("Triton cannot compile (%s): formats run as plain torch operations", error)
    return not _broken


def on_device_of(x: Tensor, work: Callable[[], None]) -> None:
    """Run `work` with the tensor's device as current, which is where Triton launches."""
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        with torch.cuda.device(x.device):
            work()
    else:
        work()


SIZE, WARPS = 1024, 4


def _round_elements(plan: RoundingPlan, x: Tensor, result: Tensor) -> None:
    kernels, n = _kernels(), x.numel()
    kernels.round_elements[(-(-n // SIZE),)](
        x, result, n, *plan.padded, most(plan, x.dtype),
        EVEN=n % SIZE == 0, SIZE=SIZE, num_warps=WARPS, **_rule(plan),
    )  # fmt: skip


def _block_work(
    plan: RoundingPlan, fmt: Any, x: Tensor, result: Tensor
) -> Callable[[], None] | None:
    t = tiling_of(fmt, x.shape)
    if t is None:
        return None
    vectors = t.block_m == 1 and t.n % t.block_n == 0 and t.block_n > TILE
    if vectors and _by_one_program(x.numel() // t.block_n, t.block_n):
        return functools.partial(_round_vectors, plan, x, result, t.block_n)
    work: Callable[..., None] = _round_blocks
    by = whole_tiles(t)
    if by is None:
        work, by = _round_large_blocks, part_tiles(t)
    if by.rows * t.n >= 2**31:
        return None
    return functools.partial(work, plan, x, result, t, by)


def _parts(t: Tiling, by: Tiles) -> tuple[int, int]:
    """The number of tiles per block, vertically and horizontally."""
    return -(-t.block_m // by.rows), -(-t.block_n // by.columns)


def _groups(t: Tiling, by: Tiles) -> tuple[int, int]:
    """The number of groups of blocks per row, and in total."""
    groups_n = -(-t.n // (t.block_n * by.groups))
    return groups_n, t.samples * -(-t.m // t.block_m) * groups_n


def _shape(t: Tiling, by: Tiles, parts: tuple[int, int]) -> tuple[int, ...]:
    """The arguments that all block kernels take."""
    return t.m, t.n, t.block_m, t.block_n, _groups(t, by)[0], *parts


def _warps(size: int) -> int:
    return min(MAX_WARPS, max(2, size // 512))


def _size(by: Tiles) -> dict[str, Any]:
    tile = {"BM": by.rows, "G": by.groups, "BN": by.columns, "EVEN": by.even}
    return {**tile, "num_warps": _warps(by.size)}


def _rule(plan: RoundingPlan) -> dict[str, Any]:
    return {"RULE": _rule_function(plan.rule), "enable_fp_fusion": False}


def _round_blocks(
    plan: RoundingPlan, x: Tensor, result: Tensor, t: Tiling, by: Tiles, largest: Any = None
) -> None:
    """Round blocks with their largest magnitudes as bits, or blocks that fit one tile."""
    parts = _parts(t, by)
    _kernels().round_blocks[(_groups(t, by)[1] * math.prod(parts),)](
        x, result, x if largest is None else largest, *_shape(t, by, parts), *plan.padded,
        most(plan, x.dtype), WHOLE=largest is None, **_rule(plan), **_size(by),
    )  # fmt: skip


def _round_large_blocks(
    plan: RoundingPlan, x: Tensor, result: Tensor, t: Tiling, by: Tiles
) -> None:
    """Round blocks of many tiles, which are read twice: for the largest element, and to round."""
    blocks = t.samples * -(-t.m // t.block_m) * -(-t.n // t.block_n)
    largest = torch.zeros(blocks, dtype=torch.int32, device=x.device)
    parts_m, parts_n = _parts(t, by)
    steps = min(STEPS, power_of_two(parts_m))
    strides = -(-parts_m // steps)
    size = _size(by) | {"EVEN": by.even and parts_m % steps == 0}
    _kernels().find_largest[(_groups(t, by)[1] * strides * parts_n,)](
        x, largest, *_shape(t, by, (strides, parts_n)), STEPS=steps, **size
    )
    _round_blocks(plan, x, result, t, by, largest)


def _by_one_program(rows: int, columns: int) -> bool:
    return columns <= (LONGEST_ROW if rows >= MANY_ROWS else LONG_ROW)


def _row_size(columns: int, most: int) -> dict[str, int]:
    """The piece size, at most `most`; long rows use fewer programs so that the cache holds all."""
    warps = 2 * MAX_WARPS if columns > LONG_ROW else _warps(max(columns, TILE))
    return {"C": min(power_of_two(columns), most), "num_warps": power_of_two(warps)}


def _round_vectors(plan: RoundingPlan, x: Tensor, result: Tensor, columns: int) -> None:
    size = _row_size(columns, 4096)
    _kernels().round_vectors[(x.numel() // columns,)](
        x, result, columns, *plan.padded, most(plan, x.dtype),
        EVEN=columns % size["C"] == 0, **size, **_rule(plan),
    )  # fmt: skip


LONG, LONG_WARPS = 4096, 8  # of a row that several programs share


def _round_rows(plan: RoundingPlan, x: Tensor, result: Tensor) -> None:
    rows, columns = rows_of(x.shape)
    short = _by_one_program(rows, columns)
    (_round_short_rows if short else _round_long_rows)(plan, x, result, rows, columns)


def _round_short_rows(
    plan: RoundingPlan, x: Tensor, result: Tensor, rows: int, columns: int
) -> None:
    """Round rows with one program per row or for several rows."""
    share, mean, beyond, more, _ = plan.padded
    size = _row_size(columns, 2048 if beyond else 4096)  # two sums need more registers
    height = max(1, TILE // size["C"])
    up = lift(columns)
    _kernels().round_rows[(-(-rows // height),)](
        x, result, rows, columns, up, 1 / up, share, more, most(plan, x.dtype),
        MEAN=bool(mean), BEYOND=bool(beyond),
        EVEN=columns % size["C"] == 0 and rows % height == 0, R=height, **size, **_rule(plan),
    )  # fmt: skip


def _round_long_rows(
    plan: RoundingPlan, x: Tensor, result: Tensor, rows: int, columns: int
) -> None:
    """Round rows of many tiles, read for the largest element, for each mean, and to round."""
    share, mean, beyond, more, _ = plan.padded
    even = columns % LONG == 0
    t, by = Tiling(1, 1, x.numel(), 1, columns), Tiles(1, 1, LONG, even)
    parts = -(-columns // LONG)
    size = {"EVEN": even, "SIZE": LONG, "num_warps": LONG_WARPS}
    largest = torch.zeros(rows, dtype=torch.int32, device=x.device)
    _kernels().find_largest[(rows * parts,)](
        x, largest, *_shape(t, by, (1, parts)), STEPS=1, **_size(by)
    )

    def mean_beyond(border: Tensor, count: int | None) -> Tensor:
        sums = torch.zeros(2, rows, dtype=torch.int64, device=x.device)
        up = lift(columns)
        _kernels().add_up[(rows * parts,)](x, largest, border, *sums, columns, parts, up, **size)
        divisor = sums[1].clamp(min=1) if count is None else count
        return mean_of(sums[0], divisor, largest.view(torch.float32), up)

    first = torch.full((rows,), share, device=x.device)
    if mean:
        first = share * mean_beyond(torch.full_like(first, -1.0), columns)
    second = mean_beyond(first, None) if beyond else first
    _kernels().round_long_rows[(rows * parts,)](
        x, result, first, second, columns, parts, more, most(plan, x.dtype),
        BEYOND=bool(beyond), **size, **_rule(plan),
    )  # fmt: skip
