"""Fixed point with bits that are trained, by plain operations: the reference for every kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chop.numerics.exponents import LAYOUTS, exp2
from chop.numerics.fast.rules import LN2, LearnedRule
from chop.numerics.grid import Overflow, Rounding


def rounded_fixed(
    x: Tensor,
    integer_bits: Tensor,
    frac_bits: Tensor,
    signed: bool,
    rounding: Rounding,
    overflow: Overflow,
) -> Tensor:
    """Return the values of `learned_fixed`; this is the reference for every kernel."""
    bits, f = whole_bits(integer_bits, frac_bits)
    step, steps = exp2(-f, x.dtype), exp2(f, x.dtype)
    low, high = _ends(bits, signed, overflow, x.dtype)
    codes = _rounded(x, step, steps, rounding)
    if overflow == "wrap":
        codes = _wrapped(codes, x, bits + int(signed), signed)
    codes = torch.minimum(torch.maximum(codes, low), high)
    return torch.where((bits > 0) | x.isnan(), codes * step, torch.zeros_like(codes))


def whole_bits(integer_bits: Tensor, frac_bits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the width without a sign, and the fraction bits, as integers."""
    i, f = (bits.detach().round().to(torch.int32) for bits in (integer_bits, frac_bits))
    return i + f, f


def _ends(bits: Tensor, signed: bool, overflow: Overflow, dtype: torch.dtype) -> tuple[Any, Tensor]:
    """Return the lowest and the highest code that `dtype` can hold."""
    count = exp2(bits.clamp(min=0), dtype)
    # the last code has as many ones as the significand has bits
    high = count - exp2((bits - LAYOUTS[dtype].mantissa - 1).clamp(min=0), dtype)
    if not signed:
        return torch.zeros_like(count), high
    return -high if overflow == "symmetric" else -count, high


def _rounded(x: Tensor, step: Tensor, steps: Tensor, rounding: Rounding) -> Tensor:
    """Return x / step as integers; each rule is exact, as that of `Integer`."""
    whole = x * steps
    if rounding == "even":
        return whole.round()
    if rounding == "floor":
        below = whole.floor()
        return below - (below * step > x).to(x.dtype)  # a small negative number may become zero
    nearest = whole.round()
    return nearest + (whole - nearest == 0.5).to(x.dtype)


def _wrapped(codes: Tensor, x: Tensor, width: Tensor, signed: bool) -> Tensor:
    """Return the codes modulo 2^width; infinite where `x` is."""
    turns = codes * exp2(-width, x.dtype)
    part = turns - turns.trunc()
    low = -0.5 if signed else 0.0
    part = torch.where(part >= low + 1, part - 1, part)
    part = torch.where(part < low, part + 1, part)
    beyond = torch.where(x.isinf() | x.isnan(), x, torch.zeros_like(x))
    return torch.where(codes.isfinite(), part * exp2(width, x.dtype), beyond)


def rounded_steps(x: Tensor, frac_bits: Tensor, rounding: Rounding) -> Tensor:
    """Return x · 2^f as integers."""
    f = frac_bits.round().to(torch.int32)
    return _rounded(x, exp2(-f, x.dtype), exp2(f, x.dtype), rounding)


def reference_gradients(
    x: Tensor,
    integer_bits: Tensor,
    frac_bits: Tensor,
    result: Tensor,
    grad: Tensor,
    rule: LearnedRule,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients for the values and both numbers of bits, before they are summed."""
    bits, f = whole_bits(integer_bits, frac_bits)
    step, top = exp2(-f, x.dtype), exp2(bits - f, x.dtype)
    ends = _ends(bits, rule.signed, rule.overflow, x.dtype)
    low, high = (end * step for end in ends)
    wraps = rule.overflow == "wrap"
    above, below = (
        (x > high, x < low) if not wraps else (torch.zeros_like(x, dtype=torch.bool),) * 2
    )
    grad = torch.where(bits > 0, grad, torch.zeros_like(grad))
    inside = ~(above | below)
    for_x = torch.where(inside, grad, torch.zeros_like(grad))
    error = torch.where(bits > 0, x - result, torch.zeros_like(grad))
    if wraps:  # only what rounding lost
        period = 2 * top if rule.signed else top
        error = error - torch.round(error / period) * period
    symmetric = float(rule.overflow == "symmetric" and rule.signed)
    at_f = torch.where(above, step, torch.where(below, -symmetric * step, error))
    at_i = torch.where(above, top, torch.where(below, -float(rule.signed) * top, 0 * top))
    return for_x, LN2 * grad * at_i, LN2 * grad * at_f
