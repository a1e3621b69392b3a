"""Exact powers of two: exponents are taken apart and put together as bits, never through log2."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """Where the exponent lies in a float of IEEE 754."""

    integer: torch.dtype
    mantissa: int  # bits
    bias: int


LAYOUTS = {
    torch.float32: Layout(torch.int32, 23, 127),
    torch.float64: Layout(torch.int64, 52, 1023),
}


def floor_log2(x: Tensor) -> Tensor:
    """The exponent of the largest power of two that is at most |x|; very low for zero.

    >>> floor_log2(torch.tensor([1.0, 0.75, -5.0, 2.0**-140])).tolist()
    [0, -1, 2, -140]
    """
    low = -2 * LAYOUTS[x.dtype].bias
    return torch.where(x == 0, low, torch.frexp(x).exponent.to(LAYOUTS[x.dtype].integer) - 1)


def _power(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    layout = LAYOUTS[dtype]
    return ((exponent.to(layout.integer) + layout.bias) << layout.mantissa).view(dtype)


def exp2(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """Two to whole exponents, exactly, down to the smallest subnormal; 0 below, largest above.

    >>> exp2(torch.tensor([0, -1, 10, -140]), torch.float32).tolist() == [1, 0.5, 1024, 2.0**-140]
    True
    """
    layout = LAYOUTS[dtype]
    exponent = exponent.clamp(1 - layout.bias - layout.mantissa, layout.bias)
    normal = exponent.clamp(min=1 - layout.bias)
    return _power(normal, dtype) * _power(exponent - normal, dtype)


def round_to_step(x: Tensor, exponent: Tensor) -> Tensor:
    """`x` to the nearest multiple of 2**exponent, ties to even; the carry comes by itself.

    In two halves, since 2**exponent may be too small to divide by.
    """
    half = exponent >> 1
    down, rest = exp2(-half, x.dtype), exp2(half - exponent, x.dtype)
    up, rest_up = exp2(half, x.dtype), exp2(exponent - half, x.dtype)
    return (x * down * rest).round() * up * rest_up


def representable_at_most(value: float, dtype: torch.dtype) -> float:
    """The largest number of `dtype` that is not above `value`."""
    rounded = torch.tensor(value, dtype=torch.float64).to(dtype)
    if rounded.item() > value:
        rounded = torch.nextafter(rounded, torch.zeros((), dtype=dtype))
    return rounded.item()
