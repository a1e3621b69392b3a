"""Rounding in integers, and exact sums of products on floating-point units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from chop.numerics.grid import Rounding

SINGLE, DOUBLE = 2**24, 2**53  # below, float32 and float64 add integers exactly
FLOAT_BITS = 52

Sums = Callable[[Tensor], Tensor]  # sums of products of the argument, in its dtype


def rounded_shift(x: Tensor, shift: int, rounding: Rounding) -> Tensor:
    """Return x / 2^shift as integers, for shift > 0; |x| is below 2^62."""
    if shift > 62:  # nearer to zero than to any other number
        return x >> 63 if rounding == "floor" else torch.zeros_like(x)
    if rounding == "floor":
        return x >> shift
    if rounding == "up":
        return (x + (1 << (shift - 1))) >> shift
    odd = (x >> shift).bitwise_and_(1)
    return odd.add_(x).add_((1 << (shift - 1)) - 1).bitwise_right_shift_(shift)


def rounded_shifts(x: Tensor, shift: Tensor, rounding: Rounding) -> Tensor:
    """Return x / 2^shift as integers, for shifts from 0 to 63 that differ by channel."""
    if rounding == "floor":
        return x >> shift
    below = x >> shift.clamp(max=62)
    # the bit after the point, and whether any bit follows it
    half = (x >> (shift - 1).clamp(0, 62)) & (shift > 0)
    if rounding == "even":
        rest = x & ((torch.ones_like(shift) << (shift - 1).clamp(0, 62)) - 1)
        half = half & ((rest != 0) | (below & 1).bool())
    return torch.where(shift > 62, torch.zeros_like(x), below + half)


def rounded_division(x: Tensor, divisor: Tensor, rounding: Rounding) -> Tensor:
    """Return x / divisor as integers, for divisors above 0 and below 2^62."""
    below = torch.div(x, divisor, rounding_mode="floor")
    if rounding == "floor":
        return below
    rest = x - below * divisor
    other = divisor - rest  # compared with the rest, as twice the rest could overflow
    if rounding == "up":
        return below + (rest >= other)
    return below + ((rest > other) | ((rest == other) & (below & 1).bool()))


def exact_sums(sums: Sums, x: Tensor, reach: int, weight_reach: int) -> Tensor:
    """Return sums of products in integers, computed in float in a way that is exact.

    `reach` bounds the sum of the magnitudes of all products, and `weight_reach` that of the
    weights: below 2^24 float32 adds exactly in any order, below 2^53 float64 does. Beyond, the
    codes are split into limbs.
    """
    if reach < DOUBLE:
        return sums(x.to(sum_dtype(x.device, reach))).long()
    bits = FLOAT_BITS - weight_reach.bit_length()
    low, high = x & ((1 << bits) - 1), x >> bits
    lower = exact_sums(sums, low, weight_reach << bits, weight_reach)
    upper = exact_sums(sums, high, (reach >> bits) + weight_reach, weight_reach)
    return (upper << bits) + lower


def sum_dtype(device: torch.device, reach: int) -> torch.dtype:
    """Return the fastest dtype that adds exactly; a GPU may shorten float32 to TF32."""
    short = device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"
    return torch.float32 if short and reach < SINGLE else torch.float64


@contextmanager
def exact_kernels() -> Iterator[None]:
    """Switch off convolutions that transform their operands, by Winograd or Fourier."""
    nnpack = torch.backends.nnpack.flags(enabled=False)
    with nnpack, torch.backends.cudnn.flags(enabled=False):
        yield
