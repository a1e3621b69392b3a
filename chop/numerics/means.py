"""Mean magnitudes with the same bits on every device, in any order of summation.

A sum of floats depends on the order. Here each magnitude is truncated to an integer number of small
units of the largest one, and integer sums are exact. The unit is so small that the sum just fits
into 62 bits: the error of a mean of n numbers is less than their largest magnitude times
2n / 2^60.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from chop.numerics.exponents import LAYOUTS, exp2, floor_log2
from chop.numerics.scratch import scratch

SUM_BITS = 60  # magnitudes below 4, times their number: the sum is below 2^62
WIDE = {"mps": torch.float32}  # devices without float64


def rows_of(shape: Sequence[int]) -> tuple[int, int]:
    """The number of means of a tensor and the numbers in each: by output channel, or sample.

    >>> rows_of([8, 3, 5]), rows_of([7]), rows_of([])
    ((8, 15), (1, 7), (1, 1))
    """
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


def lift(count: int) -> float:
    """The number of units in a magnitude of one."""
    return 2.0 ** (SUM_BITS - (count - 1).bit_length())


def mean_magnitude(x: Tensor, among: Tensor | None = None) -> Tensor:
    """Mean of |x| for each entry of the first dimension; of the whole tensor if it has only one.

    `among` marks the numbers that count. NaN counts as zero, infinity as the largest number.
    """
    a = x.abs()
    out = scratch(a)
    a = torch.nan_to_num(a, nan=0.0, posinf=torch.finfo(x.dtype).max, out=out)
    dims = list(range(1 if x.ndim > 1 else 0, x.ndim))
    if not x.numel():
        return a.sum(dims, keepdim=True)
    count: int | Tensor = rows_of(x.shape)[1]
    up = lift(int(count))  # torch.jit sees a size as a tensor
    if among is not None:
        a = torch.mul(a, among, out=out)
        count = among.sum(dims, keepdim=True).clamp(min=1)
    largest = a.amax(dims, keepdim=True)
    a = torch.mul(a, exp2(-_middle(largest), x.dtype), out=out)
    total = torch.mul(a, up, out=out).to(torch.int64).sum(dims, keepdim=True)
    return mean_of(total, count, largest, up)


def mean_of(total: Tensor, count: int | Tensor, largest: Tensor, lift: float) -> Tensor:
    """Convert a sum of integer units to a mean."""
    wide = WIDE.get(total.device.type, torch.float64)
    mean = total.to(wide) / count / lift * exp2(_middle(largest), largest.dtype).to(wide)
    return mean.to(largest.dtype).clamp(max=torch.finfo(largest.dtype).max)


def _middle(largest: Tensor) -> Tensor:
    """The exponent, clamped so that two to it and to its negative are normal numbers."""
    most = LAYOUTS[largest.dtype].bias - 1
    return floor_log2(largest).clamp(-most, most)
