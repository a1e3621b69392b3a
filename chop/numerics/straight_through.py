"""Rounding with straight-through gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from chop.numerics.scratch import is_plain

Limits = tuple[float, float]
Rounding = Callable[[Tensor], Tensor]


def _within(grad: Tensor, x: Tensor, limits: Limits) -> Tensor:
    """`grad` where `x` is within the limits, inclusive, else zero; a single operation.

    The backward of hardtanh passes values strictly between its limits, so these are the next
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
    exponent -= 2 if mantissa == -0.5 else 1  # numbers just above -1 are closer than just above 1
    step = max(math.ldexp(info.eps, exponent) if limit else 0.0, info.smallest_normal * info.eps)
    return (math.floor(limit / step) + 1) * step


class _Functional(torch.autograd.Function):
    """Forward: `rounding(x)`. Backward: the unchanged gradient, or only within `limits`.

    For vmap, functional gradients and compilers; its overhead exceeds the rounding of a small
    tensor.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, rounding: Rounding, limits: Limits | None) -> Tensor:
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


class _Together(torch.autograd.Function):
    """The same for plain tensors; several of them share one autograd node."""

    @staticmethod
    def forward(
        ctx: Any, roundings: Sequence[Rounding], limits: Sequence[Limits | None], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.limits = limits
        clipped = [x for x, limit in zip(tensors, limits, strict=True) if limit is not None]
        if clipped:
            ctx.save_for_backward(*clipped)
        return tuple([_whole(rounding(x)) for rounding, x in zip(roundings, tensors, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        clipped = iter(ctx.saved_tensors)
        gradients: list[Tensor | None] = [None, None]
        for grad, limits in zip(grads, ctx.limits, strict=True):
            if limits is not None:
                x = next(clipped)
                grad = None if grad is None else _within(grad, x, limits)
            gradients.append(grad)
        return tuple(gradients)


def _whole(x: Tensor) -> Tensor:
    """The same memory, but not a view for autograd, so that layers may write to it in place."""
    return x.data if x._is_view() else x  # a private name, without a public one


def straight_through(x: Tensor, rounding: Rounding, limits: Limits | None = None) -> Tensor:
    """Value of `rounding(x)`, bit for bit; gradient of `x`, zero outside of `limits`."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return rounding(x)
    limits = _real(limits)
    through: Tensor
    if is_plain(x):
        (through,) = _Together.apply((rounding,), (limits,), x)
    elif torch.jit.is_tracing():  # type: ignore[attr-defined]
        return rounding(x)  # it records operations, but no custom gradients
    else:
        through = _Functional.apply(x, rounding, limits)
    return through


def all_straight_through(inputs: Sequence[tuple[Tensor, Rounding, Limits | None]]) -> list[Tensor]:
    """`straight_through` for each; plain tensors with gradients share an autograd node."""
    if not torch.is_grad_enabled():
        return [rounding(x) for x, rounding, _ in inputs]
    together = [is_plain(x) and x.requires_grad for x, *_ in inputs]
    chosen = [operand for operand, joins in zip(inputs, together, strict=True) if joins]
    if len(chosen) < 2:
        return [straight_through(*operand) for operand in inputs]
    tensors, roundings, limits = zip(*chosen, strict=True)
    rounded = iter(_Together.apply(roundings, [_real(limit) for limit in limits], *tensors))
    return [
        next(rounded) if joins else straight_through(*operand)
        for operand, joins in zip(inputs, together, strict=True)
    ]


def _real(limits: Limits | None) -> Limits | None:
    """Return None for infinite limits."""
    return limits if limits is not None and any(map(math.isfinite, limits)) else None
