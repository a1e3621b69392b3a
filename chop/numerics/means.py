"""Mean magnitudes that are the same bits on every device, whatever the order of summing.

Floats that are added up in another order give another sum. Here each magnitude is cut to a whole
number of small parts of the largest one, and whole numbers have one sum. A part is so small that
the sum just fits into 62 bits: what the cut takes from a mean of n numbers is less than their
largest magnitude times 2n / 2^60.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from chop.numerics.exponents import LAYOUTS, exp2, floor_log2
from chop.numerics.scratch import scratch

SUM_BITS = 60  # of a magnitude below 4, times as many as there are: a sum below 2^62
WIDE = {"mps": torch.float32}  # elsewhere there is float64


def rows_of(shape: Sequence[int]) -> tuple[int, int]:
    """How many means a tensor has, and of how many numbers each: by output channel, or sample.

    >>> rows_of([8, 3, 5]), rows_of([7]), rows_of([])
    ((8, 15), (1, 7), (1, 1))
    """
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


def lift(count: int) -> float:
    """How many parts a magnitude of one has."""
    return 2.0 ** (SUM_BITS - (count - 1).bit_length())


def mean_magnitude(x: Tensor, among: Tensor | None = None) -> Tensor:
    """Mean of |x| for each entry of the first dimension; of one dimension or none, of all.

    `among` says which ones count. NaN counts as zero, infinity as the largest number.
    """
    a = x.abs()
    out = scratch(a)
    a = torch.nan_to_num(a, nan=0.0, posinf=torch.finfo(x.dtype).max, out=out)
    dims = list(range(1 if x.ndim > 1 else 0, x.ndim))
    if not x.numel():
        return a.sum(dims, keepdim=True)
    count: int | Tensor = rows_of(x.shape)[1]
    up = lift(rows_of(x.shape)[1])
    if among is not None:
        a = torch.mul(a, among, out=out)
        count = among.sum(dims, keepdim=True).clamp(min=1)
    largest = a.amax(dims, keepdim=True)
    a = torch.mul(a, exp2(-_middle(largest), x.dtype), out=out)
    total = torch.mul(a, up, out=out).to(torch.int64).sum(dims, keepdim=True)
    return mean_of(total, count, largest, up)


def mean_of(total: Tensor, count: int | Tensor, largest: Tensor, lift: float) -> Tensor:
    """From a sum of parts."""
    wide = WIDE.get(total.device.type, torch.float64)
    mean = total.to(wide) / count / lift * exp2(_middle(largest), largest.dtype).to(wide)
    return mean.to(largest.dtype).clamp(max=torch.finfo(largest.dtype).max)


def _middle(largest: Tensor) -> Tensor:
    """Its exponent, or the nearest one of which two to it and to its negative are normal."""
    most = LAYOUTS[largest.dtype].bias - 1
    return floor_log2(largest).clamp(-most, most)
