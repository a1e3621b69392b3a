"""Blocks of a tensor as tiles of matrices."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


def block_shape(shape: Sequence[int], sizes: Sequence[int], batch_dims: int = 0) -> list[int]:
    """The number of elements of a block in each dimension of a tensor.

    Sizes are right-aligned; -1 is the whole dimension. Without a size, blocks span the last
    two dimensions but not those before them, such as the filters of a convolution or the batch of a
    matrix product. Blocks never span the first `batch_dims` dimensions.
    """
    aligned = [1] * (len(shape) - max(2, len(sizes))) + [-1] * (2 - len(sizes)) + list(sizes)
    aligned = aligned[len(aligned) - len(shape) :]
    return [
        1 if i < batch_dims else dim if size == -1 else min(size, dim)
        for i, (size, dim) in enumerate(zip(aligned, shape, strict=True))
    ]


class Tiling(NamedTuple):
    """`samples` matrices of m by n, in blocks of block_m by block_n."""

    samples: int
    m: int
    n: int
    block_m: int
    block_n: int


def tiling(shape: Sequence[int], block: Sequence[int]) -> Tiling | None:
    """Any contiguous tensor as matrices, by joining dimensions; None if that is impossible.

    >>> tiling([8, 3, 64], [1, 1, 16])
    Tiling(samples=1, m=1, n=1536, block_m=1, block_n=16)
    >>> tiling([8, 6, 64], [1, 6, 16])
    Tiling(samples=1, m=48, n=64, block_m=6, block_n=16)
    """
    joined: list[tuple[int, int]] = []
    for dim, size in zip(shape, block, strict=True):
        if dim == 1:
            continue
        previous = joined[-1] if joined else (1, 1)
        if size == dim:
            joined[-1:] = [(previous[0] * dim, previous[1] * dim)]
        elif previous[1] == 1 and dim % size == 0:
            joined[-1:] = [(previous[0] * dim, size)]
        else:
            joined.append((dim, size))
    joined = [(1, 1)] * (3 - len(joined)) + joined
    (samples, one), (m, block_m), (n, block_n) = joined[-3:]
    if len(joined) > 3 or one != 1:
        return None
    return Tiling(samples, m, n, block_m, block_n)


@functools.lru_cache(maxsize=2**14)
def tiling_of(fmt: Any, shape: torch.Size) -> Tiling | None:
    """Return how the blocks of a format lie in a tensor of that shape."""
    return tiling(shape, block_shape(shape, *fmt.layout(len(shape)))) if shape else None


class Tiles(NamedTuple):
    """How a kernel walks a tiling: tiles of rows by groups of blocks by columns."""

    rows: int
    groups: int
    columns: int
    even: bool  # no tile is incomplete

    @property
    def size(self) -> int:
        return self.rows * self.groups * self.columns


TILE = 1024
LARGEST_TILE = 2**14  # up to which a block fits whole
LINE = 512  # minimum columns of a tile that holds part of a block


def power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _tiles(t: Tiling, rows: int, columns: int) -> Tiles:
    """Tiles of that many rows and columns of a block, or of several small blocks side by side."""
    blocks_n = power_of_two(-(-t.n // t.block_n))
    groups = min(blocks_n, max(1, TILE // (rows * columns))) if columns >= t.block_n else 1
    even = t.m % t.block_m == 0 and t.block_m % rows == 0
    even = even and t.n % (t.block_n * groups) == 0 and t.block_n % columns == 0
    return Tiles(rows, groups, columns, even)


def whole_tiles(t: Tiling) -> Tiles | None:
    """Tiles that hold one or more whole blocks; None if blocks are too large."""
    rows, columns = power_of_two(t.block_m), power_of_two(t.block_n)
    return _tiles(t, rows, columns) if rows * columns <= LARGEST_TILE else None


def part_tiles(t: Tiling) -> Tiles:
    """Tiles that hold part of a block, or of neighbouring ones, so that lines are long."""
    columns = min(power_of_two(t.block_n), TILE)
    blocks_n = power_of_two(-(-t.n // t.block_n))
    rows = min(power_of_two(t.block_m), TILE // max(columns, min(LINE, columns * blocks_n)))
    return _tiles(t, rows, columns)
