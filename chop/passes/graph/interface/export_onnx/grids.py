"""Constants as integers with a step, exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chop.numerics import NumberFormat
from chop.numerics.grid import Grid
from chop.passes.graph.interface.export_onnx.values import ExportError
from chop.passes.graph.transforms.integers.weights import check_finite, dyadic, weight_codes

__all__ = ["CodedConstant", "coded_constant", "codes_arrays", "storage_type"]

Array = Any


@dataclass(frozen=True)
class CodedConstant:
    """Codes of a constant, and what they are worth."""

    codes: Array  # int64
    grid: Grid

    @property
    def arrays(self) -> tuple[Array, Array]:
        """The scale and the zero point of nodes: one, one per channel, or one per block."""
        parts = codes_arrays(self.grid)
        if not self.grid.block:
            return parts
        return tuple(part.reshape(self.grid.blocks(self.codes.shape)) for part in parts)

    def values(self) -> Array:
        """Return what a DequantizeLinear node gives, in float32."""
        return self.grid.decode(torch.from_numpy(self.codes)).numpy()

    def turned(self) -> CodedConstant:
        """Return the constant of the transposed matrix."""
        grid = self.grid
        if grid.axis is None:
            return replace(self, codes=self.codes.T)
        scale, zero = self.arrays
        grid = replace(grid, axis=1 - grid.axis % 2, scales=numbers_in(scale.T))
        return CodedConstant(
            self.codes.T, replace(grid, zero_points=tuple(zero.T.flatten().tolist()))
        )


def numbers_in(scale: Array) -> tuple[float, ...]:
    """Return the scales of an array, in row-major order."""
    return tuple(scale.astype(np.float64).flatten().tolist())


def codes_arrays(grid: Grid) -> tuple[Array, Array]:
    """Return the scale, in float32, and the zero point of nodes."""
    shape = () if grid.axis is None else -1
    scale = np.array(grid.scales, dtype=np.float32).reshape(shape)
    return scale, np.array(grid.zero_points, dtype=np.int64).reshape(shape)


def coded_constant(
    values: Tensor, fmt: NumberFormat | None, *, blocks: bool = True
) -> CodedConstant:
    """Return the codes of values that are already rounded to a format.

    `blocks`: a format with blocks has one scale for each, rather than one for all.
    """
    values = values.detach().cpu()
    grid = None if fmt is None else fmt.grid()
    try:
        check_finite(values, "weight")
        if grid is not None:
            axis = None if grid.axis is None else grid.axis % values.ndim
            found = CodedConstant(grid.encode(values).numpy(), replace(grid, axis=axis))
        else:
            rows = fmt.power_blocks(values.shape) if fmt is not None and blocks else None
            found = (_blocked(values, *rows) if rows else None) or _stepped(values, fmt)
    except ValueError as error:
        raise ExportError(str(error)) from error
    if not np.array_equal(found.values(), values.float().numpy()):
        raise ExportError(
            f"has weights in {getattr(fmt, 'name', 'float')} that are not whole multiples of "
            f"float32 steps; use integer or affine"
        )
    return found


def _stepped(values: Tensor, fmt: NumberFormat | None) -> CodedConstant:
    codes, steps, _ = weight_codes(values, fmt)
    scale = steps.value.float().numpy()
    low, high = min(0, int(codes.min())), int(codes.max())
    axis = 0 if scale.ndim else None
    return CodedConstant(codes.numpy(), Grid(low, high, numbers_in(scale), axis=axis))


def _blocked(values: Tensor, axis: int, size: int) -> CodedConstant | None:
    """Return codes with one power of two for each block along one dimension, if they are short."""
    if size >= values.shape[axis]:
        return None  # one block for each row
    rows = F.pad(values.double().movedim(axis, -1), (0, -values.shape[axis] % size))
    blocks = rows.reshape(*rows.shape[:-1], -1, size)
    exponents = [dyadic(block)[1] for block in blocks.flatten(0, -2)]
    scale = torch.exp2(torch.tensor(exponents, dtype=torch.float64)).reshape(blocks.shape[:-1])
    scale = scale.movedim(-1, axis)
    spread = scale.repeat_interleave(size, axis).narrow(axis, 0, values.shape[axis])
    codes = (values.double() / spread).round().long()
    low, high = min(-1, int(codes.min())), max(1, int(codes.max()))
    scales = numbers_in(scale.float().numpy())
    grid = Grid(low, high, scales, axis=axis, block=size)
    return None if grid.width > 16 else CodedConstant(codes.numpy(), grid)


def storage_type(width: int, signed: bool, *, small: bool) -> Any:
    """Return the dtype of codes; `small`: four bits have a type of their own."""
    import ml_dtypes

    if width <= 4 and small:
        return ml_dtypes.int4 if signed else ml_dtypes.uint4
    for bits in (8, 16, 32):
        if width <= bits and (signed or bits < 32):
            return np.dtype(f"{'' if signed else 'u'}int{bits}")
    raise ExportError(f"has codes of {width} bits; use at most 32 for weights")
