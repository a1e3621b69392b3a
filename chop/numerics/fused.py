"""Formats in one pass over memory, bit for bit what their `round` says.

Each kind of format is a plan: a rule and its arguments, widths among them, so that one kernel
serves all widths. On CUDA the rules are Triton kernels, compiled once per dtype when they are first
called. On the CPU they are functions of one C++ library, which is built in the background once a
process has rounded many numbers, and kept for the next one. Until it is there, or if it cannot be
built, large tensors are rounded in pieces that stay in the cache.

Whatever this module cannot do (no compiler, small or unusual tensors, float64, tracing, vmap,
export) is done by the format itself.

The environment variable MASE_FUSED, or `set_fused`, decides:

- `auto`, the default: as above; nobody waits for the C++ library.
- `on`: on the CPU the first call waits for the C++ library; it warns if that is not available.
- `off`: never; formats run as plain torch operations.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
import importlib.util
import logging
import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from chop.numerics.compiled import KERNELS
from chop.numerics.exponents import LAYOUTS
from chop.numerics.means import lift, mean_of, rows_of
from chop.numerics.own import plain

if TYPE_CHECKING:
    from chop.numerics.base import NumberFormat

logger = logging.getLogger(__name__)

Mode = Literal["auto", "off", "on"]

THREAD = 2**16  # elements that take about as long as it takes to start a thread
PIECE = 2**15  # elements per thread that keep a CPU's temporaries in its cache
LEAST_PIECES = 4
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_mode: Mode
_broken = False  # Triton is there, but its compiler is not


def set_fused(mode: Mode) -> None:
    """Choose how formats run; overrules MASE_FUSED."""
    global _mode
    if mode not in get_args(Mode):
        raise ValueError(f"MASE_FUSED is one of {', '.join(get_args(Mode))}, not {mode!r}")
    _mode = mode


def fused_mode() -> Mode:
    """What `set_fused` or MASE_FUSED chose."""
    return _mode


set_fused(os.environ.get("MASE_FUSED", "auto").lower())  # type: ignore[arg-type]


def rounded(fmt: NumberFormat, x: Tensor) -> Tensor:
    """`fmt.rounded(x)`, by the fastest way that there is."""
    if _mode == "off" or not plain(x):
        return fmt.rounded(x)
    if x.is_cuda:
        found = _on_cuda(fmt, x)
    elif x.device.type == "cpu":
        found = _on_cpu(fmt, x)
    else:
        found = None
    return fmt.rounded(x) if found is None else found


# --- CPU ------------------------------------------------------------------------------------------


def _on_cpu(fmt: NumberFormat, x: Tensor) -> Tensor | None:
    if x.numel() == 0 or x.dtype not in DTYPES:
        return None
    plan = _plan(fmt, x.device)
    if plan is None:
        return None
    if KERNELS.ready(x.numel(), wait=_mode == "on"):
        return _by_library(plan, fmt, x.detach())
    return None if plan.rows else _in_pieces(plan, fmt, x)


def _by_library(plan: Plan, fmt: NumberFormat, x: Tensor) -> Tensor | None:
    """Round by the C++ library, half precision in float32; None if the shape is not for it."""
    given, result = _arranged(plan, x.float())
    shape: Sequence[int] | None = (x.numel(),)
    if plan.blocks:
        shape = tiling_of(fmt, x.shape)
    elif plan.rows:
        shape = rows_of(x.shape)
    if shape is None:
        return None
    _call_library(plan, given, result, shape)
    if x.dtype == torch.float32:
        return result
    most = _most(plan, x)
    return result.clamp_(-most, most).to(x.dtype)


def _call_library(plan: Plan, x: Tensor, result: Tensor, shape: Sequence[int]) -> None:
    # they start one after the other: with the square root, the sum of starts and work is least
    threads = max(1, min(torch.get_num_threads(), math.isqrt(x.numel() // THREAD)))
    rule = KERNELS.rule(plan.rule, plan.kind)
    rule(x.data_ptr(), result.data_ptr(), *shape, plan.packed, threads)


def _in_pieces(plan: Plan, fmt: NumberFormat, x: Tensor) -> Tensor | None:
    """Piece by piece, so that the temporaries of the format stay in the cache."""
    size = PIECE * max(2, torch.get_num_threads())
    if fmt.light or x.numel() < LEAST_PIECES * size or not x.is_contiguous():
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
    """The format of a piece, `x` in a shape that falls into pieces, and the length of one."""
    if not blocks:
        return fmt, x.detach().view(-1), size
    from chop.numerics.blocks import BlockFormat

    t, vectors = tiling_of(fmt, x.shape), not isinstance(fmt, BlockFormat)
    if t is None or vectors or (t.samples > 1 and t.m % t.block_m):
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


# --- plans: which kernel, with which arguments ----------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Plan:
    """A rule of `kernels/` and its arguments, which are floats for a reason."""

    rule: str
    arguments: tuple[float, ...]
    blocks: bool = False
    infinite: bool = False  # may make infinities
    rows: bool = False  # with means of each row

    @property
    def kind(self) -> str:
        return "blocks" if self.blocks else "rows" if self.rows else "elements"

    @functools.cached_property
    def padded(self) -> tuple[float, ...]:
        given = tuple(map(float, self.arguments))
        return given + (0.0,) * (5 - len(given))

    @functools.cached_property
    def packed(self) -> Any:
        return (ctypes.c_float * 5)(*self.padded)


def _plan_integer(fmt: Any, device: torch.device) -> Plan:
    low, high = fmt._edges[torch.float32]
    rule = "integer_floor" if fmt.floor else "integer"
    return Plan(rule, (2.0**fmt.frac_width, low, high, 2.0**-fmt.frac_width))


def _minifloat(fraction: int, lowest: int, highest: int) -> Plan:
    limit = (2 - 2.0 ** -min(fraction, 23)) * 2.0 ** min(highest, 127)
    narrow = lowest >= -126 and fraction <= 22
    narrow = narrow and max(lowest, min(highest, 127)) + 23 - fraction <= 127
    rule = "minifloat" if narrow else "minifloat_wide"
    return Plan(rule, (limit, math.inf, 0.0, lowest, fraction))


def _plan_minifloat_ieee(fmt: Any, device: torch.device) -> Plan:
    return _minifloat(fmt.fraction, 1 - fmt.exponent_bias, fmt.highest)


def _plan_minifloat_denorm(fmt: Any, device: torch.device) -> Plan:
    return _minifloat(fmt.fraction - 1, -fmt.exponent_bias - 1, fmt.highest - 1)


def _plan_fp8(fmt: Any, device: torch.device) -> Plan | None:
    """What lies beyond the largest value is torch's own affair, and differs between versions."""
    lowest = {4: -6, 5: -14}[fmt.exponent_width]
    if fmt.saturate:
        return Plan("minifloat", (fmt.largest, math.inf, 0.0, lowest, fmt.frac_width))
    probe = torch.tensor([1e6, 1e30, math.inf], device=device).to(fmt.dtype).float().tolist()
    if any(str(value) != str(probe[0]) for value in probe):
        return None
    arguments = (2.0**20, fmt.largest, probe[0], lowest, fmt.frac_width)
    return Plan("minifloat", arguments, infinite=True)


def _plan_log(fmt: Any, device: torch.device) -> Plan:
    highest = 2.0 ** min(fmt.highest, 127)
    return Plan("log", (2.0**-fmt.exponent_bias, highest, LAYOUTS[torch.float32].carry, fmt.zero))


def _plan_binary(fmt: Any, device: torch.device) -> Plan | None:
    if fmt.stochastic:
        return None
    if fmt.bipolar and not fmt.scaled:
        return Plan("bipolar", ())
    return Plan("on_off", (1.0, True, False, fmt.bipolar), rows=True)


def _plan_binary_residual(fmt: Any, device: torch.device) -> Plan | None:
    if not fmt.residual_sign:
        return None
    return Plan("residual", (fmt.levels, fmt.levels * (fmt.levels + 1) / 2))


def _plan_ternary(fmt: Any, device: torch.device) -> Plan | None:
    border = fmt.fixed_border
    if border is not None and not fmt.scaling_factor:
        return Plan("ternary", (border,))
    share = 0.75 if border is None else border
    return Plan("row_ternary", (share, border is None, fmt.scaling_factor), rows=True)


def _plan_scale_integer(fmt: Any, device: torch.device) -> Plan:
    full, low, high = fmt.codes
    return Plan("scale_integer", (full, low, high, *_reciprocal(full)), blocks=True)


def _reciprocal(n: int) -> tuple[float, float]:
    """1/n as the float32 next below it, and the rest, so that zeros keep their signs."""
    fine = 2 ** (23 + n.bit_length())
    return fine // n / fine, fine % n / (n * fine)


def _plan_block_fp(fmt: Any, device: torch.device) -> Plan:
    mantissa = fmt.width - 1
    low, high = -fmt.exponent_bias, 2**fmt.exponent_width - 1 - fmt.exponent_bias
    return Plan("block_fp", (mantissa, low, min(high, 128), 2**mantissa - 1), blocks=True)


def _plan_mxint(fmt: Any, device: torch.device) -> Plan:
    high = 2 ** (fmt.width - 1) - 1
    low = high if fmt.ocp else high + 1
    return Plan("mxint", (fmt.width - 1 - fmt.ocp, high, low, fmt.ocp), blocks=True)


def _block_float(significand: float, low: int, high: int, reach: int, fraction: int) -> Plan:
    rule = "block_float" if reach <= 62 and fraction <= 22 else "block_float_wide"
    return Plan(rule, (significand, low, high, reach, fraction), blocks=True)


def _plan_block_minifloat(fmt: Any, device: torch.device) -> Plan:
    fraction = fmt.width - fmt.exponent_width - 1
    top = 2**fmt.exponent_width - 1
    low = top - (2**fmt.exponent_bias_width - 1)
    return _block_float(2 - 2.0 ** -min(fraction, 23), low, top, top - 1, fraction)


def _plan_mxfp(fmt: Any, device: torch.device) -> Plan:
    from chop.numerics.mx import HIGHEST_SCALE, LOWEST_SCALE

    lowest, top, significand = fmt.element
    low, high = top + LOWEST_SCALE, top + HIGHEST_SCALE
    return _block_float(significand, low, high, top - lowest, fmt.frac_width)


def _plan_block_log(fmt: Any, device: torch.device) -> Plan:
    top, most = 2 ** (fmt.width - 1) - 1, 2**fmt.exponent_bias_width - 1
    return Plan("block_log", (top, most, LAYOUTS[torch.float32].carry, fmt.zero), blocks=True)


Planner = Callable[[Any, torch.device], Plan | None]


@functools.cache
def _planners() -> dict[type[NumberFormat], Planner]:
    """By exact class: one that derives from a format may round otherwise."""
    from chop.numerics import (
        binary,
        block_fp,
        block_log,
        block_minifloat,
        fp8,
        integer,
        log,
        mx,
        scale_integer,
        ternary,
    )
    from chop.numerics import minifloat as small

    return {
        integer.Integer: _plan_integer,
        small.MinifloatIEEE: _plan_minifloat_ieee,
        small.MinifloatDenorm: _plan_minifloat_denorm,
        fp8.FP8: _plan_fp8,
        log.Log: _plan_log,
        binary.Binary: _plan_binary,
        binary.BinaryResidual: _plan_binary_residual,
        ternary.Ternary: _plan_ternary,
        scale_integer.ScaleInteger: _plan_scale_integer,
        block_fp.BlockFP: _plan_block_fp,
        block_minifloat.BlockMinifloat: _plan_block_minifloat,
        block_log.BlockLog: _plan_block_log,
        mx.MXInt: _plan_mxint,
        mx.MXFP: _plan_mxfp,
    }


@functools.lru_cache(maxsize=2**14)
def _plan(fmt: NumberFormat, device: torch.device) -> Plan | None:
    planner = _planners().get(type(fmt))
    return planner(fmt, device) if planner else None


# --- tiles ----------------------------------------------------------------------------------------


class Tiling(NamedTuple):
    """`samples` matrices of m by n, in blocks of block_m by block_n."""

    samples: int
    m: int
    n: int
    block_m: int
    block_n: int


def tiling(shape: Sequence[int], block: Sequence[int]) -> Tiling | None:
    """Any contiguous tensor as matrices, by joining dimensions; None where that cannot be done.

    >>> tiling([8, 3, 64], [1, 1, 16])
    Tiling(samples=1, m=1, n=1536, block_m=1, block_n=16)
    >>> tiling([8, 6, 64], [1, 6, 16])
    Tiling(samples=1, m=48, n=64, block_m=6, block_n=16)
    """
    joined: list[tuple[int, int]] = []
    for dim, size in zip(shape, block, strict=True):
        if dim == 1:
            continue
        before = joined[-1] if joined else (1, 1)
        if size == dim:
            joined[-1:] = [(before[0] * dim, before[1] * dim)]
        elif before[1] == 1 and dim % size == 0:
            joined[-1:] = [(before[0] * dim, size)]
        else:
            joined.append((dim, size))
    joined = [(1, 1)] * (3 - len(joined)) + joined
    (samples, one), (m, block_m), (n, block_n) = joined[-3:]
    if len(joined) > 3 or one != 1:
        return None
    return Tiling(samples, m, n, block_m, block_n)


@functools.lru_cache(maxsize=2**14)
def tiling_of(fmt: Any, shape: torch.Size) -> Tiling | None:
    """How the blocks of a format lie in a tensor of that shape."""
    from chop.numerics.blocks import block_shape

    return tiling(shape, block_shape(shape, *fmt.layout(len(shape)))) if shape else None


class Tiles(NamedTuple):
    """How a kernel walks a tiling: tiles of rows by groups of blocks by columns."""

    rows: int
    groups: int
    columns: int
    even: bool  # nothing sticks out

    @property
    def size(self) -> int:
        return self.rows * self.groups * self.columns


TILE, MOST_WARPS = 1024, 16
LARGEST_TILE = 2**14  # into which a block is fitted whole
LINE = 512  # columns, at least, that a tile of a part of a block is wide if it can
STEPS = 16  # tiles of a large block that a program looks at for its largest
LONG_ROW = 2**14  # up to which one program takes a row, piece by piece, again out of the cache
LONGEST_ROW, MANY_ROWS = 2**17, 2**9  # up to which it still does, if so many rows are at work


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _tiles(t: Tiling, rows: int, columns: int) -> Tiles:
    """Of that many rows and columns of a block; of small blocks, several next to each other."""
    blocks_n = _power_of_two(-(-t.n // t.block_n))
    groups = min(blocks_n, max(1, TILE // (rows * columns))) if columns >= t.block_n else 1
    even = t.m % t.block_m == 0 and t.block_m % rows == 0
    even = even and t.n % (t.block_n * groups) == 0 and t.block_n % columns == 0
    return Tiles(rows, groups, columns, even)


def whole_tiles(t: Tiling) -> Tiles | None:
    """Each with one whole block or more; None if blocks are too large."""
    rows, columns = _power_of_two(t.block_m), _power_of_two(t.block_n)
    return _tiles(t, rows, columns) if rows * columns <= LARGEST_TILE else None


def part_tiles(t: Tiling) -> Tiles:
    """Each with a part of a block, or of neighbouring ones, so that lines are long."""
    columns = min(_power_of_two(t.block_n), TILE)
    blocks_n = _power_of_two(-(-t.n // t.block_n))
    rows = min(_power_of_two(t.block_m), TILE // max(columns, min(LINE, columns * blocks_n)))
    return _tiles(t, rows, columns)


# --- CUDA -----------------------------------------------------------------------------------------


@functools.cache
def _kernels() -> Any:
    """The module of Triton kernels, or None without Triton."""
    if importlib.util.find_spec("triton") is None:
        logger.debug("no Triton: formats run as plain torch operations")
        return None
    return importlib.import_module("chop.numerics.kernels.rounding")


def runs_kernels(x: Tensor) -> bool:
    """Whether Triton works for this tensor, and nobody has switched it off."""
    return _mode != "off" and plain(x) and x.is_cuda and _works(x.device) and not _broken


@functools.cache
def _works(device: torch.device) -> bool:
    from chop.numerics.integer import Integer

    return _on_cuda(Integer(8, 4), torch.zeros(1, device=device)) is not None


def rule_of(fmt: NumberFormat, like: Tensor) -> tuple[str, bool] | None:
    """What formats have in common that `Slices` rounds together; None for all others."""
    if like.dtype not in DTYPES or not runs_kernels(like):
        return None
    plan = _plan(fmt, like.device)
    return (plan.rule, plan.infinite) if plan is not None and plan.kind == "elements" else None


class Slices:
    """Formats of one rule on CUDA, each for a slice of a tensor, in one launch."""

    def __init__(self, formats: Sequence[NumberFormat], like: Tensor) -> None:
        plans = [_plan(fmt, like.device) for fmt in formats]
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
        kernels, size = _kernels(), min(SIZE, _power_of_two(inner))
        kernels.round_slices[(x.numel() // inner, -(-inner // size))](
            x,
            result,
            inner,
            self.count,
            self.table,
            _most(self.plan, x),
            RULE=getattr(kernels, self.plan.rule),
            SIZE=size,
            num_warps=WARPS if size >= SIZE else 1,
            enable_fp_fusion=False,
        )


def _on_cuda(fmt: NumberFormat, x: Tensor) -> Tensor | None:
    if _broken or x.dtype not in DTYPES or x.numel() == 0 or _kernels() is None:
        return None
    plan = _plan(fmt, x.device)
    return None if plan is None else launch(plan, fmt, x.detach())


def launch(plan: Plan, fmt: NumberFormat, x: Tensor) -> Tensor | None:
    """Round by kernel; None if the tensor's shape is not for it, or there is no compiler."""
    x, result = _arranged(plan, x)
    if plan.blocks:
        work = _block_work(plan, fmt, x, result)
    elif plan.rows:
        work = functools.partial(_round_rows, plan, x, result)
    else:
        work = functools.partial(_round_elements, plan, x, result)
    if work is None or not _compiled(work, x):
        return None
    return result


def _arranged(plan: Plan, x: Tensor) -> tuple[Tensor, Tensor]:
    """A tensor without gaps, and one for the result in the same order in memory."""
    if plan.blocks or plan.rows:
        x = x.contiguous()
    result = torch.empty_like(x)
    if result.stride() != x.stride():
        x = x.contiguous()
        result = torch.empty_like(x)
    return x, result


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
    """Launch kernels where a tensor is: Triton asks for the current device."""
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        with torch.cuda.device(x.device):
            work()
    else:
        work()


def _most(plan: Plan, x: Tensor) -> float:
    return math.inf if plan.infinite else torch.finfo(x.dtype).max


SIZE, WARPS = 1024, 4


def _round_elements(plan: Plan, x: Tensor, result: Tensor) -> None:
    kernels, n = _kernels(), x.numel()
    kernels.round_elements[(-(-n // SIZE),)](
        x,
        result,
        n,
        *plan.padded,
        _most(plan, x),
        RULE=getattr(kernels, plan.rule),
        EVEN=n % SIZE == 0,
        SIZE=SIZE,
        num_warps=WARPS,
        enable_fp_fusion=False,
    )


def _block_work(plan: Plan, fmt: Any, x: Tensor, result: Tensor) -> Callable[[], None] | None:
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
    """How many tiles a block takes, downwards and sideways."""
    return -(-t.block_m // by.rows), -(-t.block_n // by.columns)


def _groups(t: Tiling, by: Tiles) -> tuple[int, int]:
    """How many groups of blocks stand side by side, and how many there are in all."""
    groups_n = -(-t.n // (t.block_n * by.groups))
    return groups_n, t.samples * -(-t.m // t.block_m) * groups_n


def _blocks(t: Tiling) -> int:
    return t.samples * -(-t.m // t.block_m) * -(-t.n // t.block_n)


def _shape(t: Tiling, by: Tiles, parts: tuple[int, int]) -> tuple[int, ...]:
    """What all kernels of blocks are told."""
    return t.m, t.n, t.block_m, t.block_n, _groups(t, by)[0], *parts


def _warps(size: int) -> int:
    return min(MOST_WARPS, max(2, size // 512))


def _size(by: Tiles) -> dict[str, Any]:
    tile = {"BM": by.rows, "G": by.groups, "BN": by.columns, "EVEN": by.even}
    return {**tile, "num_warps": _warps(by.size)}


def _rule(plan: Plan) -> dict[str, Any]:
    return {"RULE": getattr(_kernels(), plan.rule), "enable_fp_fusion": False}


def _round_blocks(
    plan: Plan, x: Tensor, result: Tensor, t: Tiling, by: Tiles, largest: Tensor | None = None
) -> None:
    """Of each block the largest magnitude is given, as bits, or a tile holds all of it."""
    parts = _parts(t, by)
    _kernels().round_blocks[(_groups(t, by)[1] * math.prod(parts),)](
        x,
        result,
        x if largest is None else largest,
        *_shape(t, by, parts),
        *plan.padded,
        _most(plan, x),
        WHOLE=largest is None,
        **_rule(plan),
        **_size(by),
    )


def _round_large_blocks(plan: Plan, x: Tensor, result: Tensor, t: Tiling, by: Tiles) -> None:
    """Of many tiles each, and so read twice: for their largest, and to be rounded."""
    largest = torch.zeros(_blocks(t), dtype=torch.int32, device=x.device)
    parts_m, parts_n = _parts(t, by)
    steps = min(STEPS, _power_of_two(parts_m))
    strides = -(-parts_m // steps)
    size = _size(by) | {"EVEN": by.even and parts_m % steps == 0}
    _kernels().find_largest[(_groups(t, by)[1] * strides * parts_n,)](
        x, largest, *_shape(t, by, (strides, parts_n)), STEPS=steps, **size
    )
    _round_blocks(plan, x, result, t, by, largest)


def _by_one_program(rows: int, columns: int) -> bool:
    return columns <= (LONGEST_ROW if rows >= MANY_ROWS else LONG_ROW)


def _row_size(columns: int, most: int) -> dict[str, int]:
    """Pieces of at most that size. Of long rows fewer are at work, so that the cache holds all."""
    warps = 2 * MOST_WARPS if columns > LONG_ROW else _warps(max(columns, TILE))
    return {"C": min(_power_of_two(columns), most), "num_warps": _power_of_two(warps)}


def _round_vectors(plan: Plan, x: Tensor, result: Tensor, columns: int) -> None:
    size = _row_size(columns, 4096)
    _kernels().round_vectors[(x.numel() // columns,)](
        x,
        result,
        columns,
        *plan.padded,
        _most(plan, x),
        EVEN=columns % size["C"] == 0,
        **size,
        **_rule(plan),
    )


LONG, LONG_WARPS = 4096, 8  # of a row that many programs share


def _round_rows(plan: Plan, x: Tensor, result: Tensor) -> None:
    rows, columns = rows_of(x.shape)
    short = _by_one_program(rows, columns)
    (_round_short_rows if short else _round_long_rows)(plan, x, result, rows, columns)


def _round_short_rows(plan: Plan, x: Tensor, result: Tensor, rows: int, columns: int) -> None:
    """By one program each, or several by one."""
    share, mean, beyond, more, _ = plan.padded
    size = _row_size(columns, 2048 if beyond else 4096)  # two sums take more registers
    height = max(1, TILE // size["C"])
    up = lift(columns)
    _kernels().round_rows[(-(-rows // height),)](
        x, result, rows, columns, up, 1 / up, share, more, _most(plan, x),
        MEAN=bool(mean), BEYOND=bool(beyond),
        EVEN=columns % size["C"] == 0 and rows % height == 0, R=height,
        **size,
        **_rule(plan),
    )  # fmt: skip


def _round_long_rows(plan: Plan, x: Tensor, result: Tensor, rows: int, columns: int) -> None:
    """Of many tiles each, and so read for their largest, for each mean, and to be rounded."""
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
        found = sums[1].clamp(min=1) if count is None else count
        return mean_of(sums[0], found, largest.view(torch.float32), up)

    first = torch.full((rows,), share, device=x.device)
    if mean:
        first = share * mean_beyond(torch.full_like(first, -1.0), columns)
    second = mean_beyond(first, None) if beyond else first
    _kernels().round_long_rows[(rows * parts,)](
        x, result, first, second, columns, parts, more, _most(plan, x),
        BEYOND=bool(beyond), **size, **_rule(plan),
    )  # fmt: skip
