# mypy: ignore-errors
"""Triton kernels for fixed point with bits that are trained; `fast.learned_cuda` launches them.

The numbers of each network lie as outer by channels by inner, and each channel of each network has
its integer and fraction bits. Every step is that of `learned` in rounding.cpp.
"""

import triton
import triton.language as tl

from chop.numerics.kernels.rules import (
    _clamp,
    _exp2,
    _nearest,
    _whole_below,
    _whole_up,
    _wrapped,
)


@triton.jit
def _bits_of(at, mask, i_ptr, f_ptr, numbers, channels, inner, UNLIMITED: tl.constexpr):
    """The width without a sign and the fraction bits of each number, as integers."""
    channel = at // numbers * channels + at // inner % channels
    f = _nearest(tl.load(f_ptr + channel, mask=mask, other=0.0)).to(tl.int32)
    if UNLIMITED:
        return tl.zeros_like(f) + 64, f
    i = _nearest(tl.load(i_ptr + channel, mask=mask, other=0.0)).to(tl.int32)
    return i + f, f


@triton.jit
def _ends(n, SIGNED: tl.constexpr, SYMMETRIC: tl.constexpr):
    """The lowest and the highest code; the latter has 24 ones at most."""
    count = _exp2(tl.maximum(n, 0))
    high = count - _exp2(tl.maximum(n - 24, 0))
    if not SIGNED:
        return tl.zeros_like(high), high
    if SYMMETRIC:
        return -high, high
    return -count, high


@triton.jit
def _rounded(
    x, n, f, SIGNED: tl.constexpr, SYMMETRIC: tl.constexpr, WRAPS: tl.constexpr,
    ROUNDING: tl.constexpr,
):  # fmt: skip
    step, scaled = _exp2(-f), x * _exp2(f)
    if ROUNDING == 0:
        whole = _nearest(scaled)
    elif ROUNDING == 1:
        whole = _whole_up(scaled)
    else:
        whole = _whole_below(scaled, x, step)
    low, high = _ends(n, SIGNED, SYMMETRIC)
    if WRAPS:
        size = _exp2(n + 1) if SIGNED else _exp2(n)
        whole = _wrapped(whole, x, size, -1.0 if SIGNED else 0.0)
    y = _clamp(whole, low, high) * step
    return tl.where(n > 0, y, tl.where(x == x, 0.0, x))


@triton.jit(do_not_specialize=["count", "numbers", "channels", "inner"])
def round_learned(
    x_ptr, y_ptr, i_ptr, f_ptr, count, numbers, channels, inner,
    SIGNED: tl.constexpr, SYMMETRIC: tl.constexpr, UNLIMITED: tl.constexpr, WRAPS: tl.constexpr,
    ROUNDING: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = at < count
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    n, f = _bits_of(at, mask, i_ptr, f_ptr, numbers, channels, inner, UNLIMITED)
    tl.store(y_ptr + at, _rounded(x, n, f, SIGNED, SYMMETRIC, WRAPS, ROUNDING), mask=mask)


@triton.jit(do_not_specialize=["count", "numbers", "channels", "inner"])
def learned_gradients(
    x_ptr, grad_ptr, for_x_ptr, for_i_ptr, for_f_ptr, i_ptr, f_ptr, count, numbers, channels, inner,
    SIGNED: tl.constexpr, SYMMETRIC: tl.constexpr, UNLIMITED: tl.constexpr, WRAPS: tl.constexpr,
    ROUNDING: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The gradient of each number, and its parts of those of its bits, without the factor ln 2."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = at < count
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    n, f = _bits_of(at, mask, i_ptr, f_ptr, numbers, channels, inner, UNLIMITED)
    grad = tl.where(n > 0, tl.load(grad_ptr + at, mask=mask, other=0.0), 0.0)
    step, top = _exp2(-f), _exp2(n - f)
    error = tl.where(n > 0, x - _rounded(x, n, f, SIGNED, SYMMETRIC, WRAPS, ROUNDING), 0.0)
    if WRAPS:
        period = (_exp2(n + 1) if SIGNED else _exp2(n)) * step
        error -= _nearest(tl.div_rn(error, period)) * period
        tl.store(for_x_ptr + at, grad, mask=mask)
        tl.store(for_i_ptr + at, tl.zeros_like(grad), mask=mask)
        tl.store(for_f_ptr + at, grad * error, mask=mask)
    else:
        low, high = _ends(n, SIGNED, SYMMETRIC)
        above, below = x > high * step, x < low * step
        lowest = -top if SIGNED else tl.zeros_like(top)
        at_low = -step if SIGNED and SYMMETRIC else tl.zeros_like(step)
        tl.store(for_x_ptr + at, tl.where(above | below, 0.0, grad), mask=mask)
        for_i = tl.where(above, top, tl.where(below, lowest, 0.0))
        tl.store(for_i_ptr + at, grad * for_i, mask=mask)
        for_f = tl.where(above, step, tl.where(below, at_low, error))
        tl.store(for_f_ptr + at, grad * for_f, mask=mask)
