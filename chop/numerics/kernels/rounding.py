# mypy: ignore-errors
"""Triton kernels that round a tensor in one pass; `chop.numerics.fast.cuda` launches them.

This folder has no __init__.py, so that the registry of formats does not import triton.
"""

import triton
import triton.language as tl

from chop.numerics.kernels.rules import _bits, _clamp, _float, _magnitudes, _mean, _parts


@triton.jit
def _cast(y, most, y_ptr):
    """Convert to the result's dtype; half precision stays finite, up to `most`."""
    if y_ptr.dtype.element_ty == tl.float32:
        return y
    return _clamp(y, -most, most).to(y_ptr.dtype.element_ty)


@triton.jit
def round_elements(
    x_ptr, y_ptr, n, p0, p1, p2, p3, p4, most,
    RULE: tl.constexpr, EVEN: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * SIZE
    at = tl.arange(0, SIZE)
    if EVEN:
        x = tl.load(x_ptr + start + at).to(tl.float32)
        tl.store(y_ptr + start + at, _cast(RULE(x, p0, p1, p2, p3, p4), most, y_ptr))
    else:
        mask = at < n - start
        x = tl.load(x_ptr + start + at, mask=mask, other=0.0).to(tl.float32)
        y = _cast(RULE(x, p0, p1, p2, p3, p4), most, y_ptr)
        tl.store(y_ptr + start + at, y, mask=mask)


@triton.jit(do_not_specialize=["inner", "slices"])
def round_slices(
    x_ptr, y_ptr, inner, slices, table_ptr, most, RULE: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """Slices alternate: `inner` consecutive numbers belong to one, the next to the following one.

    A row of the table has the arguments of a slice."""
    outer = tl.program_id(0).to(tl.int64)
    p = table_ptr + (outer % slices) * 5
    at = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    mask = at < inner
    x = tl.load(x_ptr + outer * inner + at, mask=mask, other=0.0).to(tl.float32)
    y = RULE(x, tl.load(p), tl.load(p + 1), tl.load(p + 2), tl.load(p + 3), tl.load(p + 4))
    tl.store(y_ptr + outer * inner + at, _cast(y, most, y_ptr), mask=mask)


@triton.jit
def _tile(
    m, n, block_m, block_n, groups_n, parts_m, parts_n,
    ROWS: tl.constexpr, BM: tl.constexpr, G: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Return this program's elements, their rows in the block and the number of rows, and masks.

    The masks mark the columns and the blocks that exist.

    A tile is BM rows by G blocks of BN columns, of which a program may take several downwards,
    ROWS in all; a block may take parts_m by parts_n programs.
    """
    program = tl.program_id(0).to(tl.int64)
    group = (program % groups_n) * G
    part = (program // groups_n) % (parts_m * parts_n)
    row_block = program // groups_n // (parts_m * parts_n)
    blocks_m, blocks_n = tl.cdiv(m, block_m), tl.cdiv(n, block_n)
    top = (row_block % blocks_m) * block_m
    row = (part // parts_n) * ROWS + tl.arange(0, BM)[:, None, None]
    g = group + tl.arange(0, G)
    column = (part % parts_n) * BN + tl.arange(0, BN)[None, None, :]
    inside = column < block_n
    column += g[None, :, None] * block_n
    inside = inside & (column < n)
    at = ((row_block // blocks_m) * m + top + row) * n + column
    return at, row, tl.minimum(block_m, m - top), inside, row_block * blocks_n + g, g < blocks_n


@triton.jit(do_not_specialize=["m", "block_m", "groups_n", "parts_m", "parts_n"])
def round_blocks(
    x_ptr, y_ptr, largest_ptr, m, n, block_m, block_n, groups_n, parts_m, parts_n,
    p0, p1, p2, p3, p4, most,
    RULE: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr,
    BM: tl.constexpr, G: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """`RULE` per block. Blocks larger than a tile (not WHOLE) read their largest from memory."""
    at, row, rows, inside, block, real = _tile(
        m, n, block_m, block_n, groups_n, parts_m, parts_n, BM, BM, G, BN
    )
    if EVEN:
        x = tl.load(x_ptr + at).to(tl.float32)
    else:
        x = tl.load(x_ptr + at, mask=inside & (row < rows), other=0.0).to(tl.float32)
    if WHOLE:
        largest = tl.max(tl.max(_magnitudes(x), axis=2), axis=0)
    else:
        largest = _float(tl.load(largest_ptr + block, mask=real, other=0))
    y = _cast(RULE(x, largest[None, :, None], p0, p1, p2, p3, p4), most, y_ptr)
    if EVEN:
        tl.store(y_ptr + at, y)
    else:
        tl.store(y_ptr + at, y, mask=inside & (row < rows))


@triton.jit(do_not_specialize=["m", "block_m", "groups_n", "parts_m", "parts_n"])
def find_largest(
    x_ptr, largest_ptr, m, n, block_m, block_n, groups_n, parts_m, parts_n,
    EVEN: tl.constexpr, STEPS: tl.constexpr,
    BM: tl.constexpr, G: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The largest magnitude of each block that is larger than a tile."""
    at, row, rows, inside, block, real = _tile(
        m, n, block_m, block_n, groups_n, parts_m, parts_n, BM * STEPS, BM, G, BN
    )
    most = tl.zeros([BM, G, BN], tl.float32)
    for _ in range(STEPS):
        if EVEN:
            x = tl.load(x_ptr + at)
        else:
            x = tl.load(x_ptr + at, mask=inside & (row < rows), other=0.0)
        most = tl.maximum(most, _magnitudes(x.to(tl.float32)))
        at += BM * n
        row += BM
    largest = tl.max(tl.max(most, axis=2), axis=0)
    tl.atomic_max(largest_ptr + block, _bits(largest), mask=real)


@triton.jit
def _piece(x_ptr, at, inside, EVEN: tl.constexpr, KEEP: tl.constexpr):
    """Load a piece; with KEEP it will be read again from the cache."""
    policy: tl.constexpr = "evict_last" if KEEP else "evict_first"
    if EVEN:
        x = tl.load(x_ptr + at, eviction_policy=policy)
    else:
        x = tl.load(x_ptr + at, mask=inside, other=0.0, eviction_policy=policy)
    return x.to(tl.float32)


@triton.jit
def round_vectors(
    x_ptr, y_ptr, columns, p0, p1, p2, p3, p4, most,
    RULE: tl.constexpr, EVEN: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """`RULE` for blocks of one row each, one row per program, which re-reads it from the cache.

    This is faster than keeping it in registers, which would limit occupancy.
    """
    start = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, C)
    a = tl.zeros([C], tl.float32)
    for i in range(0, columns, C):
        inside = i + column < columns
        a = tl.maximum(a, _magnitudes(_piece(x_ptr, start + i + column, inside, EVEN, True)))
    largest = tl.max(a, axis=0, keep_dims=True)
    for i in range(0, columns, C):
        at, inside = start + i + column, i + column < columns
        x = _piece(x_ptr, at, inside, EVEN, False)
        y = _cast(RULE(x, largest, p0, p1, p2, p3, p4), most, y_ptr)
        if EVEN:
            tl.store(y_ptr + at, y)
        else:
            tl.store(y_ptr + at, y, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def round_rows(
    x_ptr, y_ptr, rows, columns, lift, unlift, share, p, most,
    RULE: tl.constexpr, MEAN: tl.constexpr, BEYOND: tl.constexpr,
    EVEN: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """`RULE` for R rows per program, which re-reads them from the cache.

    The first statistic is `share`, of the mean magnitude if MEAN. The second is the mean of the
    magnitudes beyond the first, or one.
    """
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    column = tl.arange(0, C)[None, :]
    start = row * columns + column
    real = row < rows
    a = tl.zeros([R, C], tl.float32)
    for i in range(0, columns, C):
        inside = real & (i + column < columns)
        a = tl.maximum(a, _magnitudes(_piece(x_ptr, start + i, inside, EVEN, True)))
    largest = tl.max(a, axis=1, keep_dims=True)
    first = tl.zeros_like(largest) + share
    second = tl.zeros_like(largest) + 1.0
    if MEAN:
        total = tl.zeros([R, C], tl.int64)
        for i in range(0, columns, C):
            inside = real & (i + column < columns)
            x = _piece(x_ptr, start + i, inside, EVEN, True)
            total += _parts(_magnitudes(x), largest, lift)
        total = tl.sum(total, axis=1, keep_dims=True)
        first = share * _mean(total, columns, largest, unlift)
    if BEYOND:
        magnitude_sum = tl.zeros([R, C], tl.int64)
        counts = tl.zeros([R, C], tl.int32)
        for i in range(0, columns, C):
            inside = real & (i + column < columns)
            x = _piece(x_ptr, start + i, inside, EVEN, True)
            beyond = tl.abs(x) > first
            magnitude_sum += _parts(tl.where(beyond, _magnitudes(x), 0.0), largest, lift)
            counts += beyond.to(tl.int32)
        magnitude_sum = tl.sum(magnitude_sum, axis=1, keep_dims=True)
        count = tl.sum(counts, axis=1, keep_dims=True)
        second = _mean(magnitude_sum, tl.maximum(count, 1), largest, unlift)
    for i in range(0, columns, C):
        inside = real & (i + column < columns)
        x = _piece(x_ptr, start + i, inside, EVEN, False)
        y = _cast(RULE(x, first, second, p), most, y_ptr)
        if EVEN:
            tl.store(y_ptr + start + i, y)
        else:
            tl.store(y_ptr + start + i, y, mask=inside)


@triton.jit
def _part_of_row(columns, parts, SIZE: tl.constexpr):
    """The row of this program, its elements, and the mask of those that exist."""
    program = tl.program_id(0).to(tl.int64)
    row = program // parts
    column = (program % parts) * SIZE + tl.arange(0, SIZE)
    return row, row * columns + column, column < columns


@triton.jit(do_not_specialize=["parts"])
def add_up(
    x_ptr, largest_ptr, border_ptr, total_ptr, count_ptr, columns, parts, lift,
    EVEN: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """For rows longer than a tile: sum and count of the magnitudes beyond a border."""
    row, at, inside = _part_of_row(columns, parts, SIZE)
    x = _piece(x_ptr, at, inside, EVEN, False)
    largest = _float(tl.load(largest_ptr + row))
    beyond = tl.abs(x) > tl.load(border_ptr + row)
    magnitudes = _parts(tl.where(beyond, _magnitudes(x), 0.0), largest, lift)
    tl.atomic_add(total_ptr + row, tl.sum(magnitudes, axis=0))
    tl.atomic_add(count_ptr + row, tl.sum(beyond.to(tl.int32), axis=0).to(tl.int64))


@triton.jit(do_not_specialize=["parts"])
def round_long_rows(
    x_ptr, y_ptr, first_ptr, second_ptr, columns, parts, p, most,
    RULE: tl.constexpr, BEYOND: tl.constexpr, EVEN: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """`RULE` with precomputed statistics."""
    row, at, inside = _part_of_row(columns, parts, SIZE)
    x = _piece(x_ptr, at, inside, EVEN, False)
    second = tl.load(second_ptr + row) if BEYOND else 1.0
    y = _cast(RULE(x, tl.load(first_ptr + row), second, p), most, y_ptr)
    if EVEN:
        tl.store(y_ptr + at, y)
    else:
        tl.store(y_ptr + at, y, mask=inside)
