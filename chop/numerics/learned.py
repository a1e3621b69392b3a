"""Fixed point whose integer and fraction bits are tensors that may be trained.

A number has a sign, `integer_bits` i and `frac_bits` f: its step is 2^-f, its largest value
2^i - 2^-f, and its width, without the sign, i + f. A number of no bits is always zero.
"""

from __future__ import annotations

import abc
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from chop.numerics.fast import learned as fast
from chop.numerics.fast.learned_reference import reference_gradients, rounded_fixed
from chop.numerics.fast.rules import ENOUGH, LearnedRule, Places
from chop.numerics.grid import Overflow, Rounding

Cost = Literal["ebops", "lut", "bitops", "model_size"]


def whole(bits: Tensor) -> Tensor:
    """Return real numbers of bits rounded to whole ones; the gradient passes."""
    return bits + (bits.round() - bits).detach()


def learned_fixed(
    x: Tensor,
    integer_bits: Tensor | None,
    frac_bits: Tensor,
    *,
    signed: bool = True,
    rounding: Rounding = "even",
    overflow: Overflow = "saturate",
) -> Tensor:
    """Return `x` in fixed point, with gradients for `x` and for both numbers of bits.

    The bits broadcast to `x` and are rounded to integers. With n = i + f the result is that of
    `Integer(n + 1, f)`, or without a sign of `Integer(n, f, signed=False)`, and zero if n < 1.
    Without `integer_bits` there are as many as the values need. Within the range the gradients are
    1 for x and ln 2 · (x - result) for f; beyond it, those of the nearest end. Numbers that wrap
    count as within the range. A number of no bits has no gradients.
    """
    rule = LearnedRule(signed, rounding, overflow, unlimited=integer_bits is None)
    return _by_kernel_or_torch(x, integer_bits, frac_bits, rule)


def _by_kernel_or_torch(
    x: Tensor, integer_bits: Tensor | None, frac_bits: Tensor, rule: LearnedRule
) -> Tensor:
    # a kernel does not read the integer bits of a range that is not limited
    bits = frac_bits.detach() if integer_bits is None else integer_bits
    places = fast.kernel_places(x, bits, frac_bits, rule)
    if places is not None and not torch.jit.is_tracing():  # type: ignore[attr-defined]
        fused: Tensor = _FusedFixed.apply(x, bits, frac_bits, rule, places, False)
        return fused
    bits = enough_bits(frac_bits) if integer_bits is None else integer_bits
    result: Tensor = _LearnedFixed.apply(x, bits, frac_bits, rule)
    return result


def fixed(
    x: Tensor,
    integer_bits: Tensor | None,
    frac_bits: Tensor,
    signed: bool,
    rounding: Rounding,
    overflow: Overflow,
) -> Tensor:
    """Return the values of `learned_fixed` without gradients, by a kernel where there is one."""
    rule = LearnedRule(signed, rounding, overflow, unlimited=integer_bits is None)
    bits = frac_bits.detach() if integer_bits is None else integer_bits
    places = fast.kernel_places(x, bits, frac_bits, rule)
    if places is None:
        bits = enough_bits(frac_bits) if integer_bits is None else integer_bits
        return rounded_fixed(x, bits, frac_bits, signed, rounding, overflow)
    return fast.rounded(x, bits, frac_bits, places, rule)


def enough_bits(frac_bits: Tensor) -> Tensor:
    """Return integer bits with which no value that occurs is beyond the range."""
    return ENOUGH - frac_bits.detach().round()


class _LearnedFixed(torch.autograd.Function):
    """The reference, by plain operations."""

    @staticmethod
    def forward(x: Tensor, integer_bits: Tensor, frac_bits: Tensor, rule: LearnedRule) -> Tensor:
        return rounded_fixed(x, integer_bits, frac_bits, *rule.words)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, integer_bits, frac_bits, ctx.rule = inputs
        ctx.save_for_backward(x, integer_bits, frac_bits, output)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        integer_bits: Tensor,
        frac_bits: Tensor,
        rule: LearnedRule,
    ) -> tuple[Tensor, int]:
        """Round the numbers of all networks at once, by a kernel where there is one."""
        tensors = zip((x, integer_bits, frac_bits), in_dims[:3], strict=True)
        x, i, f = (_of_networks(t, dim, info.batch_size) for t, dim in tensors)
        below = [_below_networks(bits, x.dim()) for bits in (i, f)]
        if fast.kernel_places(x, below[0], below[1], rule) is None and len(x):
            places = fast.kernel_places(x[0], i[0], f[0], rule)
            if places is not None:
                fused: Tensor = _FusedFixed.apply(x, i, f, rule, places, True)
                return fused, 0
        return _by_kernel_or_torch(x, below[0], below[1], rule), 0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, integer_bits, frac_bits, result = ctx.saved_tensors
        found = reference_gradients(x, integer_bits, frac_bits, result, grads[0], ctx.rule)
        pairs = zip(found, (x, integer_bits, frac_bits), strict=True)
        return (*(_summed(grad, like) for grad, like in pairs), None)


def _of_networks(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    """Return a tensor under vmap with the networks as its first dimension."""
    return tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _below_networks(bits: Tensor, rank: int) -> Tensor:
    """Return the bits of several networks so that those of each broadcast to its numbers."""
    return bits.reshape(len(bits), *[1] * (rank - bits.dim()), *bits.shape[1:])


class _FusedFixed(torch.autograd.Function):
    """The same for plain tensors, in one pass over memory.

    With `several` networks, their numbers and bits lie one after the other.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        integer_bits: Tensor,
        frac_bits: Tensor,
        rule: LearnedRule,
        places: Places,
        several: bool,
    ) -> Tensor:
        ctx.rule, ctx.places, ctx.several = rule, places, several
        ctx.save_for_backward(x, integer_bits, frac_bits)
        rounded = fast.rounded_networks if several else fast.rounded
        return rounded(x, integer_bits, frac_bits, places, rule)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, integer_bits, frac_bits = ctx.saved_tensors
        gradients = fast.gradients_of_networks if ctx.several else fast.gradients
        found = gradients(x, grads[0], integer_bits, frac_bits, ctx.places, ctx.rule)
        return (*found, None, None, None)


def own_widths(x: Tensor, frac_bits: Tensor, signed: bool, rounding: Rounding) -> Tensor | None:
    """Return the bits without a sign that each rounded element needs, by a kernel.

    The gradient is 1 for the fraction bits of an element that has bits. None without a kernel.
    """
    rule = LearnedRule(signed, rounding, "saturate", unlimited=True)
    found = fast.widths(x, frac_bits, rule)
    if found is None or not frac_bits.requires_grad:
        return found
    result: Tensor = _OwnWidths.apply(frac_bits, found)
    return result


class _OwnWidths(torch.autograd.Function):
    """Known widths, with their gradients for the fraction bits."""

    @staticmethod
    def forward(ctx: Any, frac_bits: Tensor, widths: Tensor) -> Tensor:
        ctx.save_for_backward(widths)
        return widths.view_as(widths)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (widths,) = ctx.saved_tensors
        # the gradient where there are bits, else zero, in one pass
        return torch.ops.aten.threshold_backward(grads[0], widths, 0), None


def _summed(grad: Tensor, like: Tensor) -> Tensor:
    """Sum a gradient over the dimensions along which a tensor was broadcast."""
    summed = grad.sum_to_size(like.shape) if grad.shape != like.shape else grad
    return summed.to(like.dtype)


class LearnsBits(abc.ABC):
    """Mixin of a layer whose bit widths are trained.

    The abstract methods work under `torch.func.vmap` and `functional_call`, so that many networks
    can be trained at once: they read parameters and buffers only, and no value decides what they
    do.
    """

    @abc.abstractmethod
    def width_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are numbers of bits, by their names in the layer."""

    @abc.abstractmethod
    def bit_cost(self, cost: Cost, *, exact: bool = False) -> Tensor:
        """Return what the layer costs for one sample, as a scalar with gradients for the widths.

        `exact` counts with whole bits what the layer costs once its widths are frozen; it has no
        gradients.
        """

    def frozen(self) -> Any:
        """Return the layer that takes its place once it is trained, or itself."""
        return self

    def start_at(self, mean: Tensor, spread: Tensor) -> bool:
        """Begin with results of that mean and standard deviation, and return whether it does.

        A layer that was trained does not, and by default none does.
        """
        return False
