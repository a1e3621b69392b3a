"""Constants as integers with a step, exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.numerics import NumberFormat
from chop.numerics.affine import Affine
from chop.numerics.blocks import block_shape, to_tiles
from chop.numerics.integer import Integer
from chop.numerics.mx import MXFP, MXInt
from chop.passes.graph.interface.export_onnx.values import ExportError
from chop.passes.graph.transforms.integers.weights import dyadic, weight_codes

__all__ = ["CodedConstant", "constant_grid", "storage_type"]

Array = Any


@dataclass(frozen=True)
class CodedConstant:
    """Values (code - zero) · scale; scales are one, one per channel of `axis`, or one per block."""

    codes: Array  # int64
    scale: Array  # float32
    zero: Array  # int64, in the shape of the scale
    low: int
    high: int
    axis: int | None = None
    block: int = 0

    @property
    def signed(self) -> bool:
        return self.low < 0

    @property
    def width(self) -> int:
        """The bits that the codes need."""
        largest = max(self.high, -self.low - 1)
        return max(1, largest.bit_length() + int(self.signed))

    def values(self) -> Array:
        """Return what a DequantizeLinear node gives, in float32."""
        scale, zero = self.scale, self.zero
        if self.block:
            scale, zero = (np.repeat(x, self.block, self.axis) for x in (scale, zero))
            part = [slice(n) for n in self.codes.shape]
            scale, zero = scale[tuple(part)], zero[tuple(part)]
        elif self.axis is not None:
            shape = [1] * self.codes.ndim
            shape[self.axis] = -1
            scale, zero = scale.reshape(shape), zero.reshape(shape)
        return (self.codes - zero).astype(np.float32) * scale

    def turned(self) -> CodedConstant:
        """Return the grid of the transposed matrix."""
        axis = None if self.axis is None else 1 - self.axis % 2
        both = {"scale": self.scale.T, "zero": self.zero.T} if self.block else {}
        return replace(self, codes=self.codes.T, axis=axis, **both)


def constant_grid(
    values: Tensor, fmt: NumberFormat | None, *, blocks: bool = True
) -> CodedConstant:
    """Return the integers of values that are already rounded to a format.

    `blocks`: a format with blocks has one scale for each, rather than one for all.
    """
    values = values.detach().cpu()
    if isinstance(fmt, Affine):
        grid = _affine(values, fmt)
    elif isinstance(fmt, MXInt | MXFP) and blocks:
        grid = _blocked(values, fmt)
    else:
        grid = _stepped(values, fmt)
    if not np.array_equal(grid.values(), values.float().numpy()):
        raise ExportError(
            f"has weights in {getattr(fmt, 'name', 'float')} that are not whole multiples of "
            f"float32 steps; use integer or affine"
        )
    return grid


def _affine(values: Tensor, fmt: Affine) -> CodedConstant:
    scale, zero = (t.numpy() for t in fmt.tensors())
    axis = None if fmt.axis is None else fmt.axis % values.ndim
    shape = [1] * values.ndim
    if axis is not None:
        shape[axis] = -1
    spread = scale.reshape(shape), zero.reshape(shape)
    codes = np.rint(values.float().numpy() / spread[0]).astype(np.int64) + spread[1]
    return CodedConstant(codes, scale, zero.astype(np.int64), *fmt.codes, axis)


def _stepped(values: Tensor, fmt: NumberFormat | None) -> CodedConstant:
    try:
        codes, steps, width = weight_codes(values, fmt)
    except ValueError as error:
        raise ExportError(str(error)) from error
    scale = steps.value.numpy().astype(np.float32)
    if isinstance(fmt, Integer):
        low, high = fmt.codes
    else:
        low, high = min(0, int(codes.min())), int(codes.max())
        del width
    axis = 0 if scale.ndim else None
    return CodedConstant(
        codes.numpy(), scale, np.zeros_like(scale, dtype=np.int64), low, high, axis
    )


def _blocked(values: Tensor, fmt: MXInt | MXFP) -> CodedConstant:
    """Return codes with one power of two for each block along one dimension."""
    if values.ndim == 0 or len(fmt.sizes) > 1:
        return _stepped(values, fmt)
    extents = block_shape(values.shape, *fmt.layout(values.ndim))
    axis = fmt.block_dim % values.ndim
    tiles = to_tiles(values.double(), extents)
    inside = [*range(1, tiles.ndim, 2)]
    blocks = tiles.permute(*range(0, tiles.ndim, 2), *inside).flatten(tiles.ndim // 2)
    flat = blocks.reshape(-1, blocks.shape[-1])
    exponents = [dyadic(row)[1] for row in flat]
    scale = torch.exp2(torch.tensor(exponents, dtype=torch.float64)).reshape(blocks.shape[:-1])
    spread = scale.repeat_interleave(extents[axis], axis).narrow(axis, 0, values.shape[axis])
    codes = (values.double() / spread).round().long()
    low, high = min(-1, int(codes.min())), max(1, int(codes.max()))
    zero = np.zeros(scale.shape, dtype=np.int64)
    grid = CodedConstant(codes.numpy(), scale.float().numpy(), zero, low, high, axis, extents[axis])
    if extents[axis] >= values.shape[axis] or grid.width > 16:
        return _stepped(values, fmt)  # one block for each row
    return grid


def storage_type(width: int, signed: bool, *, small: bool) -> Any:
    """Return the dtype of codes; `small`: four bits have a type of their own."""
    import ml_dtypes

    if width <= 4 and small:
        return ml_dtypes.int4 if signed else ml_dtypes.uint4
    for bits in (8, 16, 32):
        if width <= bits and (signed or bits < 32):
            return np.dtype(f"{'' if signed else 'u'}int{bits}")
    raise ExportError(f"has codes of {width} bits; use at most 32 for weights")
