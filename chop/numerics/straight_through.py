"""Rounding that gradients pass through."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Limits = tuple[float, float]


def _within(grad: Tensor, x: Tensor, limits: Limits) -> Tensor:
    """`grad` where `x` is within the limits, these included, else zero; one operation.

    The backward of hardtanh lets pass what lies strictly between, so its limits are the next
    numbers outward. Where `x` is NaN the gradient passes too.
    """
    low, high = -_above(-limits[0], x.dtype), _above(limits[1], x.dtype)
    within: Tensor = torch.ops.aten.hardtanh_backward(grad, x, low, high)
    return within


def _above(limit: float, dtype: torch.dtype) -> float:
    """The smallest number of `dtype` above `limit`, or infinity."""
    info = torch.finfo(dtype)
    if not abs(limit) < info.max:
        return math.inf if limit > 0 else -info.max
    mantissa, exponent = math.frexp(limit)
    exponent -= 2 if mantissa == -0.5 else 1  # just above -1 numbers are closer than just above 1
    step = max(math.ldexp(info.eps, exponent) if limit else 0.0, info.smallest_normal * info.eps)
    return (math.floor(limit / step) + 1) * step


class _StraightThrough(torch.autograd.Function):
    """Forward: `rounding(x)`. Backward: the gradient as it is, or only within `limits`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, rounding: Callable[[Tensor], Tensor], limits: Limits | None) -> Tensor:
        return rounding(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, ctx.limits = inputs
        if ctx.limits is not None:
            ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        if ctx.limits is None:
            return grads[0], None, None
        return _within(grads[0], ctx.saved_tensors[0], ctx.limits), None, None


def straight_through(
    x: Tensor, rounding: Callable[[Tensor], Tensor], limits: Limits | None = None
) -> Tensor:
    """Value of `rounding(x)`, bit for bit; gradient of `x`, zero outside of `limits`."""
    if limits is not None and not any(map(math.isfinite, limits)):
        limits = None
    if torch.is_grad_enabled() and x.requires_grad:
        through: Tensor = _StraightThrough.apply(x, rounding, limits)
        return through
    return rounding(x)
