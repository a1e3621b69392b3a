"""Number formats as functions, with the names and signatures that notebooks use.

Each of them builds a format of `chop.numerics` and calls it. `skip_first_dim` says that a tensor is
a batch, which blocks do not span.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from chop.numerics.affine import Affine
from chop.numerics.base import straight_through
from chop.numerics.binary import Binary, residual_signs, sign
from chop.numerics.block_fp import BlockFP
from chop.numerics.block_log import BlockLog
from chop.numerics.block_minifloat import BlockMinifloat
from chop.numerics.blocks import batch_rank, from_tiles, to_tiles
from chop.numerics.blocks import block_shape as shape_of_block
from chop.numerics.grid import Overflow, Rounding
from chop.numerics.integer import Integer
from chop.numerics.log import Log
from chop.numerics.minifloat import MinifloatDenorm, MinifloatIEEE
from chop.numerics.mx import MXFP, SCALE_BITS, MXInt
from chop.numerics.scale_integer import ScaleInteger
from chop.numerics.ternary import Ternary

Sizes = int | Sequence[int]


def integer_quantizer(
    x: Any,
    width: int,
    frac_width: int | None = None,
    is_signed: bool = True,
    rounding: Rounding = "even",
    overflow: Overflow = "saturate",
) -> Any:
    """Fixed point, by default rounded to nearest; `frac_width` defaults to half of the width."""
    return Integer(width, _or_default(frac_width), is_signed, rounding, overflow)(x)


def integer_floor_quantizer(
    x: Any,
    width: int,
    frac_width: int | None = None,
    is_signed: bool = True,
    overflow: Overflow = "saturate",
) -> Any:
    """Fixed point, rounded down."""
    return Integer(width, _or_default(frac_width), is_signed, "floor", overflow)(x)


def integer_quantizer_for_hw(
    x: Tensor,
    width: int,
    frac_width: int,
    rounding: Rounding = "even",
    overflow: Overflow = "saturate",
) -> Tensor:
    """Integer codes of fixed-point values as hardware stores them: from 0 to 2^width - 1."""
    rounded: Tensor = Integer(width, frac_width, True, rounding, overflow)(x.double())
    codes: Tensor = (rounded * 2.0**frac_width).long() & (2**width - 1)
    return codes


def affine_quantizer(
    x: Any,
    width: int,
    scale: float | Sequence[float],
    zero_point: int | Sequence[int] = 0,
    is_signed: bool = True,
    axis: int | None = None,
) -> Any:
    """Integers with a given scale and zero point, of the tensor or of each channel."""
    several: Any = {"scale": scale, "zero_point": zero_point}
    return Affine(width, signed=is_signed, axis=axis, **several)(x)


def scale_integer_quantizer(
    x: Any, width: int, is_signed: bool = True, quantile: float | None = None
) -> Any:
    """Integers scaled by the largest magnitude along the last dimension."""
    _refuse("scale_integer_quantizer", quantile=quantile)
    return ScaleInteger(width, signed=is_signed)(x)


def minifloat_denorm_quantizer(
    x: Any, width: int, exponent_width: int, exponent_bias: int | None = None
) -> Any:
    """Small floats without a hidden leading one."""
    return MinifloatDenorm(width, exponent_width, _or_default(exponent_bias))(x)


def minifloat_ieee_quantizer(
    x: Any, width: int, exponent_width: int, exponent_bias: int | None = None
) -> Any:
    """Small floats with a hidden leading one, and subnormals."""
    return MinifloatIEEE(width, exponent_width, _or_default(exponent_bias))(x)


def log_quantizer(x: Any, width: int, exponent_bias: int | None = None) -> Any:
    """Signed powers of two."""
    return Log(width, _or_default(exponent_bias))(x)


def block_fp_quantizer(
    x: Any,
    width: int = 12,
    exponent_width: int = 8,
    exponent_bias: int | None = None,
    block_size: Sizes = (16,),
    skip_first_dim: bool = True,
    carry: bool = False,
) -> Any:
    """Mantissas with a shared exponent, raised for the largest element if `carry` is set."""
    sizes, bias = _sizes(block_size), _or_default(exponent_bias)
    return BlockFP(width, exponent_width, bias, sizes, carry, batched=skip_first_dim)(x)


def block_minifloat_quantizer(
    x: Any,
    width: int,
    exponent_width: int,
    exponent_bias_width: int,
    block_size: Sizes = (16,),
    skip_first_dim: bool = False,
) -> Any:
    """Small floats with a shared exponent bias."""
    widths = (width, exponent_width, exponent_bias_width)
    return BlockMinifloat(*widths, _sizes(block_size), batched=skip_first_dim)(x)


def block_log_quantizer(
    x: Any,
    width: int,
    exponent_bias_width: int | None = None,
    block_size: Sizes = (16,),
    skip_first_dim: bool = False,
) -> Any:
    """Signed powers of two with a shared exponent bias."""
    sizes = _sizes(block_size)
    return BlockLog(width, _or_default(exponent_bias_width), sizes, batched=skip_first_dim)(x)


def binary_quantizer(x: Any, stochastic: bool = False, bipolar: bool = False) -> Any:
    """Plus and minus one if `bipolar`, else zero and the mean magnitude."""
    return Binary(1, stochastic, bipolar)(x)


def residual_sign_quantizer(
    levels: int,
    x_quantizer: Callable[[Tensor], Tensor] | None,
    means: Iterable[float | Tensor],
    x: Tensor,
) -> Tensor:
    """The contribution of each level of signs, stacked; with one level, the sum itself.

    `x_quantizer` binarises, by default to signs with a gradient from -1 to 1.
    """
    chosen = list(means)[:levels]
    if len(chosen) < levels:
        raise ValueError(f"residual signs of {levels} levels need {levels} means, not {chosen}")
    signs = residual_signs(x, chosen, x_quantizer or _clipped_sign)
    return signs[0] if levels == 1 else torch.stack(signs)


def _clipped_sign(x: Tensor) -> Tensor:
    return straight_through(x, sign, (-1.0, 1.0))


def ternary_quantizer(
    x: Any,
    threshold: float | None = None,
    maximum: float | None = None,
    median: float | None = None,
    mean: float | None = None,
    scaling_factor: bool = False,
) -> Any:
    """-1, 0 or 1; with `scaling_factor`, times the mean of the nonzero magnitudes."""
    return Ternary(2, scaling_factor, mean, median, maximum, threshold=threshold)(x)


def mxint_quantizer(
    x: Any,
    block_size: int,
    element_bits: int,
    block_dim: int = -1,
    scale_bits: int = SCALE_BITS,
    quantile_search: bool = False,
) -> Any:
    """Integers with a shared power-of-two scale."""
    _refuse("mxint_quantizer", scale_bits, quantile_search=quantile_search)
    return MXInt(element_bits, _sizes(block_size), block_dim=block_dim)(x)


def mxfp_quantizer(
    x: Any,
    block_size: int,
    element_exp_bits: int,
    element_frac_bits: int,
    block_dim: int = -1,
    scale_exp_bits: int = SCALE_BITS,
    quantile_search: bool = False,
) -> Any:
    """Small floats with a shared power-of-two scale."""
    _refuse("mxfp_quantizer", scale_exp_bits, quantile_search=quantile_search)
    return MXFP(element_exp_bits, element_frac_bits, _sizes(block_size), block_dim=block_dim)(x)


def _or_default(value: int | None) -> Any:
    """`value` for a type checker that does not know that formats replace None by a default."""
    return value


def _sizes(block_size: Sizes) -> tuple[int, ...]:
    return (block_size,) if isinstance(block_size, int) else tuple(block_size)


def _refuse(function: str, scale_bits: int = SCALE_BITS, **options: Any) -> None:
    for key, value in options.items():
        if value:
            raise ValueError(f"{function} does not support {key} = {value!r}; leave it out")
    if scale_bits != SCALE_BITS:
        raise ValueError(f"the shared scale of MX formats has {SCALE_BITS} bits, not {scale_bits}")


quantizer_map: dict[str, Callable[..., Any]] = {
    name.removesuffix("_quantizer"): function
    for name, function in globals().items()
    if name.endswith("_quantizer") and function is not residual_sign_quantizer
} | {
    "fixed": integer_quantizer,
    "minifloat_simple": minifloat_ieee_quantizer,
    "binary_residual": residual_sign_quantizer,
}


def integer_fraction(
    width: int, frac_choices: Iterable[int], min_value: float, max_value: float
) -> int:
    """The largest number of fraction bits, of the choices, that covers values from min to max."""
    magnitude = max(abs(min_value), abs(max_value))
    integer_bits = int(math.log2(max(0.5, magnitude))) + 2
    room = max(0, width - integer_bits)
    choices = sorted(frac_choices)
    return max((choice for choice in choices if choice <= room), default=choices[0])


def my_clamp(x: Tensor, min: float, max: float) -> Tensor:
    """Clamp `x`; its gradient passes everywhere."""
    return straight_through(x, lambda x: x.clamp(min, max))


def my_round(x: Tensor) -> Tensor:
    """Round `x`, ties to even; its gradient passes."""
    return straight_through(x, torch.round)


def block(
    x: Tensor, block_shape: Sizes, skip_first_dim: bool = False
) -> tuple[Tensor, Tensor, list[int], list[int]]:
    """Return blocks as rows, the largest magnitude of each, the padded shape, the block's shape.

    Blocks of zeros get the smallest nonzero maximum, or 1, so that dividing by it is safe.
    """
    batch_dims = batch_rank(x.ndim) if skip_first_dim else 0
    shape = shape_of_block(x.shape, _sizes(block_shape), batch_dims)
    tiles = to_tiles(x, shape)
    padded = [n * size for n, size in zip(tiles.shape[::2], tiles.shape[1::2], strict=True)]
    blocks_first = [*range(0, tiles.ndim, 2), *range(1, tiles.ndim, 2)]
    rows = tiles.permute(blocks_first).reshape(-1, math.prod(shape))
    largest = rows.abs().amax(-1, keepdim=True)
    least = torch.where(largest > 0, largest, math.inf).min()
    least = torch.where(least.isinf(), 1.0, least)
    return rows, torch.where(largest > 0, largest, least), padded, shape


def unblock(
    x: Tensor,
    x_shape_before_blocking: Sequence[int],
    padded_x_shape: Sequence[int],
    block_shape: Sequence[int],
    skipped_first_dim_when_blocking: bool = True,
) -> Tensor:
    """Reassemble the tensor from blocks, the rows of `x`."""
    rank = len(block_shape)
    counts = [dim // size for dim, size in zip(padded_x_shape, block_shape, strict=True)]
    tiles = x.reshape(*counts, *block_shape)
    back = [i for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for i in pair]
    return from_tiles(tiles.permute(back), x_shape_before_blocking)
