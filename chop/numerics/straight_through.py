"""Rounding that gradients pass through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _StraightThrough(torch.autograd.Function):
    """Forward: `rounding(x)`. Backward: the gradient as it is, or only within `limits`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        rounding: Callable[[Tensor], Tensor],
        limits: tuple[float, float] | None,
    ) -> Tensor:
        if limits is not None:
            ctx.save_for_backward((x >= limits[0]) & (x <= limits[1]))
        return rounding(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        within = ctx.saved_tensors
        return (grads[0] * within[0] if within else grads[0]), None, None


def straight_through(
    x: Tensor,
    rounding: Callable[[Tensor], Tensor],
    limits: tuple[float, float] | None = None,
) -> Tensor:
    """Value of `rounding(x)`, bit for bit; gradient of `x`, zero outside of `limits`."""
    if torch.is_grad_enabled() and x.requires_grad:
        through: Tensor = _StraightThrough.apply(x, rounding, limits)
        return through
    return rounding(x)
