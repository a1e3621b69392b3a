"""Blocks of a tensor that share an exponent, a bias or a scale."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.numerics.base import NumberFormat
from chop.numerics.fast.tiling import block_shape as block_shape
from chop.numerics.grid import FixedScales
from chop.numerics.scratch import is_plain


def batch_rank(rank: int) -> int:
    """The number of batch dimensions of an activation: all but the last two, and the first.

    A tensor of one dimension holds features.
    """
    return max(min(1, rank - 1), rank - 2)


def to_tiles(x: Tensor, block: Sequence[int]) -> Tensor:
    """Split each dimension into block index and position; zeros pad incomplete blocks."""
    ragged = [(-dim) % size for size, dim in zip(block, x.shape, strict=True)]
    padded = x
    if any(ragged):
        padded = F.pad(x, [n for extra in reversed(ragged) for n in (0, extra)])
    split = [n for size, dim in zip(block, padded.shape, strict=True) for n in (dim // size, size)]
    return padded.reshape(split)


def from_tiles(tiles: Tensor, shape: Sequence[int]) -> Tensor:
    """Reassemble the tensor of that shape from tiles; the inverse of `to_tiles`."""
    sizes = tiles.shape
    padded = tiles.reshape([n * size for n, size in zip(sizes[::2], sizes[1::2], strict=True)])
    return padded[tuple(slice(dim) for dim in shape)]


def tile_amax(tiles: Tensor) -> Tensor:
    """The largest magnitude of each tile, in a shape that broadcasts; NaN is ignored."""
    dims = list(range(1, tiles.ndim, 2))
    magnitudes = tiles.abs()
    if tiles.is_cpu and is_plain(tiles):  # checking for NaN first is faster than replacing it
        largest = magnitudes.amax(dim=dims, keepdim=True)
        if not largest.isnan().any():
            return largest
    return magnitudes.nan_to_num(nan=0.0, posinf=math.inf).amax(dim=dims, keepdim=True)


@dataclass(frozen=True)
class BlockFormat(NumberFormat):
    """Elements of a block share a field; each block's grid depends on its largest element.

    A single number as `block_size` applies to the last dimension. Activations are blocked within
    each sample, in the last two dimensions, and never across the batch.
    """

    elementwise: ClassVar[bool] = False

    batched: bool | None = field(default=None, kw_only=True)  # None: decided by the operand

    @property
    @abc.abstractmethod
    def shared_bits(self) -> int:
        """Bits stored once per block."""

    @property
    @abc.abstractmethod
    def element_bits(self) -> int:
        """Bits stored per element."""

    @abc.abstractmethod
    def round_blocks(self, x: Tensor, largest: Tensor) -> Tensor:
        """`round` for a given largest magnitude of each element's block, which broadcasts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        written: Any = self.sizes
        sizes = [written] if isinstance(written, int) else written
        law = isinstance(sizes, list | tuple) and len(sizes) > 0
        law = law and all(type(n) is int and (n == -1 or n > 0) for n in sizes)
        self.require(
            law, "block_size must be a list of numbers from 1, or -1 for a whole dimension"
        )
        if self.batched is not None:
            self.require_flags("batched")
        object.__setattr__(self, "block_size", tuple(sizes))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The field `block_size`, which every block format defines."""
        sizes: tuple[int, ...] = vars(self)["block_size"]
        return sizes

    @property
    def precision(self) -> list[Any]:
        return [list(v) if isinstance(v, tuple) else v for v in super().precision]

    def for_operand(self, operand: str, *, non_negative: bool = False) -> Self:
        if self.batched is not None:
            return self
        return replace(self, batched=operand.startswith("data_"))  # data_in and data_out

    def layout(self, rank: int) -> tuple[Sequence[int], int]:
        """The sizes of a block and the number of batch dimensions for a tensor of that rank."""
        return self.sizes, batch_rank(rank) if self.batched else 0

    def round(self, x: Tensor) -> Tensor:
        finite = torch.finfo(x.dtype).max
        inside = x.clamp(-finite, finite)
        if x.ndim == 0 or 0 in x.shape:  # a scalar is one block
            return self.round_blocks(inside, inside.abs().nan_to_num(nan=0.0))
        tiles = to_tiles(inside, block_shape(x.shape, *self.layout(x.ndim)))
        return from_tiles(self.round_blocks(tiles, tile_amax(tiles)), x.shape)

    def with_scales_of(self, x: Tensor) -> FixedScales:
        tiles = to_tiles(x, block_shape(x.shape, *self.layout(x.ndim)))
        largest = from_tiles(tile_amax(tiles).expand_as(tiles), x.shape)
        return FixedScales(self.round_blocks, (largest,), x.abs() == largest)

    @property
    def bits(self) -> float:
        """Bits per element of full blocks; for whole-dimension blocks the shared part vanishes."""
        share = 0.0 if -1 in self.sizes else self.shared_bits / math.prod(self.sizes)
        return self.element_bits + share

    def average_bits(self, shape: Sequence[int]) -> float:
        if not shape or 0 in shape:
            return float(self.element_bits + self.shared_bits)
        extents = block_shape(shape, *self.layout(len(shape)))
        blocks = math.prod(-(-dim // size) for dim, size in zip(shape, extents, strict=True))
        return self.element_bits + self.shared_bits * blocks / math.prod(shape)

    @property
    def largest(self) -> float:
        return math.inf

    @property
    def smallest(self) -> float:
        return 0.0
