"""Rounding to multiples of scales, which may be tensors that are trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from chop.numerics import fused
from chop.numerics.exponents import ceil_log2, exp2, whole_at_most
from chop.numerics.fast.plans import RoundingPlan
from chop.numerics.grid import Grid
from chop.numerics.scratch import is_plain, scratch
from chop.numerics.straight_through import Rounding, straight_through

Numbers = tuple[tuple[float, ...], tuple[int, ...]]  # scales and zero points

MIN_SCALE = 2.0**-126  # the smallest normal float32


def rounded_codes(x: Tensor, scale: Tensor, low: Any, high: Any) -> Tensor:
    """Return x / scale, rounded to integers, ties to even, from `low` to `high`."""
    codes = x / scale
    out = scratch(codes)
    codes = torch.round(codes, out=out)
    return torch.clamp(codes, low, high, out=out)


def in_float32(rounding: Rounding, x: Tensor) -> Tensor:
    """Return `rounding(x)`; half precision is rounded in float32, and stays finite."""
    if x.dtype in (torch.float32, torch.float64):
        return rounding(x)
    highest = torch.finfo(x.dtype).max
    return rounding(x.float()).clamp(-highest, highest).to(x.dtype)


@dataclass(frozen=True)
class Steps:
    """Multiples of one scale, from `low` to `high` of them."""

    light: ClassVar[bool] = True

    scale: float
    low: int
    high: int

    def round(self, x: Tensor) -> Tensor:
        """Return the nearest multiples of the scale."""
        # a tensor on the same device: a GPU divides by a Python number through its reciprocal
        scale = torch.full((), self.scale, dtype=x.dtype, device=x.device)
        low, high = whole_at_most(self.low, x.dtype), whole_at_most(self.high, x.dtype)
        codes = rounded_codes(x, scale, low, high)
        return torch.mul(codes, scale, out=scratch(codes))

    def rounded(self, x: Tensor) -> Tensor:
        """`round` for any float dtype."""
        return in_float32(self.round, x)

    def plan(self, device: torch.device) -> RoundingPlan:
        """Return the kernel that rounds like `round`."""
        low, high = (whole_at_most(code, torch.float32) for code in (self.low, self.high))
        return RoundingPlan("affine", (self.scale, low, high))


class AffineLike(Protocol):
    """What the rounding needs to know about an affine format."""

    @property
    def axis(self) -> int | None: ...

    @property
    def power_of_two(self) -> bool: ...

    @property
    def learn(self) -> bool: ...

    @property
    def ste(self) -> str: ...

    @property
    def codes(self) -> tuple[int, int]: ...


class ScaledAffine:
    """An affine format with its scale and zero point as tensors, such as the buffers of a layer.

    Two of them are equal if they round alike, as far as can be seen without waiting for a GPU:
    there, if they follow from the same tensors, the `sources`.
    """

    deterministic = True

    def __init__(
        self,
        fmt: AffineLike,
        scale: Tensor,
        zero_point: Tensor,
        *,
        batched: bool = False,
        sources: tuple[Tensor, ...] | None = None,
    ) -> None:
        self.fmt, self.batched = fmt, batched
        self.scale, self.zero_point = scale, zero_point
        self._sources = (scale, zero_point) if sources is None else sources
        self._numbers = _numbers(scale, zero_point)
        self._version = versions_of(self._sources) if self._numbers is None else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScaledAffine) or self.fmt != other.fmt:
            return False
        if self._numbers is not None or other._numbers is not None:
            return self._numbers == other._numbers
        if self._version is None or self._version != other._version:
            return False
        return all(a is b for a, b in zip(self._sources, other._sources, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, x: Any) -> Any:
        """Return `x` rounded, with the gradients that the format asks for."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(f"affine rounds floating-point tensors, not {_kind(x)}")
        self._check(x)
        learn = self.fmt.learn and self.scale.requires_grad
        trained = torch.is_grad_enabled() and (learn or x.requires_grad)
        # a trace has no gradients of ours
        if not trained or torch.jit.is_tracing():  # type: ignore[attr-defined]
            return self._rounded(x)
        if not learn and self.fmt.ste != "clip":
            return straight_through(x, self._rounded)
        scale = positive(self.scale.to(x.device), self.fmt.power_of_two)
        share = self._share(x) if learn else 0.0
        point = self.zero_point.to(x.device)
        return _Learned.apply(x, scale, point, self.fmt.codes, self.fmt.axis, share)

    def round(self, x: Tensor) -> Tensor:
        """Return the nearest values for float32 and float64, without a gradient."""
        point = self.zero_point.to(x.device)
        used = self.used.to(x.device)
        scale, low, high = _spread(x, used, point, self.fmt.codes, self.fmt.axis)
        if self._numbers is not None and not any(self._numbers[1]):
            low, high = (whole_at_most(code, x.dtype) for code in self.fmt.codes)  # faster
        codes = rounded_codes(x.detach(), scale, low, high)
        return torch.mul(codes, scale, out=scratch(codes))

    @property
    def used(self) -> Tensor:
        """The scale that is used, without a gradient: see `positive`."""
        scale = self.scale.detach()
        adapted = self.fmt.learn or self.fmt.power_of_two
        return positive(scale, self.fmt.power_of_two) if adapted else scale

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return the scale that is used, and the zero point."""
        return self.used, self.zero_point

    def grid(self) -> Grid:
        """Return the codes of the values."""
        scales = tuple(self.used.double().reshape(-1).tolist())
        points = tuple(self.zero_point.reshape(-1).tolist())
        return Grid(*self.fmt.codes, scales, points, self.fmt.axis)

    @property
    def numbers(self) -> Numbers | None:
        """The values of scale and zero point, if reading them does not wait for a device."""
        return self._numbers

    def _rounded(self, x: Tensor) -> Tensor:
        if self._numbers is None or self.fmt.axis is not None or not is_plain(x):
            return in_float32(self.round, x)
        (scale,), (point,) = self._numbers
        scale = used_scale(scale, self.fmt.power_of_two)
        low, high = self.fmt.codes
        return fused.rounded(Steps(scale, low - point, high - point), x)

    def _check(self, x: Tensor) -> None:
        """Raise an error for a tensor without the channels that the scales are for."""
        axis = self.fmt.axis
        if axis is None:
            if self.scale.numel() != 1 or self.zero_point.numel() != 1:
                raise ValueError(
                    f"affine: there are {self.scale.numel()} scales without an axis; "
                    f"give one scale and one zero point, or the axis"
                )
            return
        if x.dim() == 0:
            raise ValueError(f"affine: axis is {axis}, but a single number has none; leave it out")
        if not -x.dim() <= axis < x.dim():
            raise ValueError(
                f"affine: axis is {axis}, but the tensor has {x.dim()} dimensions; "
                f"give an axis from {-x.dim()} to {x.dim() - 1}"
            )
        if self.scale.numel() != x.shape[axis]:
            raise ValueError(
                f"affine: there are {self.scale.numel()} scales for {x.shape[axis]} channels "
                f"along axis {axis}; give one for each channel"
            )

    def _share(self, x: Tensor) -> float:
        """Return LSQ's factor of the scale's gradient, 1 / sqrt(n · highest code).

        There are n elements per scale; in a batch of activations, in each sample.
        """
        count = x.numel() // max(1, self.scale.numel())
        count //= max(1, x.shape[0]) if self.batched and x.dim() > 1 else 1
        return 1 / math.sqrt(max(1, count) * self.fmt.codes[1])


def _kind(x: Any) -> str:
    return str(x.dtype) if isinstance(x, Tensor) else type(x).__name__


def versions_of(sources: tuple[Tensor, ...]) -> tuple[int, ...] | None:
    """Return how often tensors were written to; None for those that do not count it."""
    if not is_plain(sources[0]) or any(source.is_inference() for source in sources):
        return None
    return tuple(source._version for source in sources)


def _numbers(scale: Tensor, zero_point: Tensor) -> Numbers | None:
    """Return the values of tensors on the CPU; reading others would wait for their device."""
    if not (scale.is_cpu and zero_point.is_cpu and is_plain(scale) and is_plain(zero_point)):
        return None
    return tuple(scale.detach().view(-1).tolist()), tuple(zero_point.view(-1).tolist())


def _spread(
    x: Tensor, scale: Tensor, zero_point: Tensor, codes: tuple[int, int], axis: int | None
) -> tuple[Tensor, Any, Any]:
    """Return the scale, the lowest and the highest multiple of it, in shapes that broadcast."""
    shape = [1] * x.dim()
    if axis is not None:
        shape[axis] = -1
    point = zero_point.to(x.dtype).reshape(shape)
    low, high = (whole_at_most(code, x.dtype) - point for code in codes)
    return scale.to(x.dtype).reshape(shape), low, high


def used_scale(scale: float, power_of_two: bool) -> float:
    """Return what `positive` returns, for a number."""
    used = max(abs(scale), MIN_SCALE)
    return next_power(used) if power_of_two else used


def next_power(scale: float) -> float:
    """Return the smallest power of two that is at least `scale`."""
    mantissa, exponent = math.frexp(scale)
    return math.ldexp(1.0, exponent - (mantissa == 0.5))


def positive(scale: Tensor, power_of_two: bool) -> Tensor:
    """Return the scale that is used: the magnitude, at least 2**-126, or the next power of two."""
    if not (torch.is_grad_enabled() and scale.requires_grad):
        return _Positive.forward(scale, power_of_two)
    return _Positive.apply(scale, power_of_two)  # type: ignore[no-any-return]


class _Positive(torch.autograd.Function):
    """The gradient is that of the magnitude; at zero it is that of a positive number."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scale: Tensor, power_of_two: bool) -> Tensor:
        used = scale.abs().clamp(min=MIN_SCALE)
        return exp2(ceil_log2(used), used.dtype) if power_of_two else used

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (scale,) = ctx.saved_tensors
        return torch.where(scale < 0, -grads[0], grads[0]), None


class _Learned(torch.autograd.Function):
    """The gradients of LSQ (Esser et al., 2020), equations 2, 3 and 5, with a zero point."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        codes: tuple[int, int],
        axis: int | None,
        share: float,
    ) -> Tensor:
        def rounding(x: Tensor) -> Tensor:
            steps, low, high = _spread(x, scale, zero_point, codes, axis)
            return rounded_codes(x, steps, low, high) * steps

        return in_float32(rounding, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, scale, zero_point, ctx.codes, ctx.axis, ctx.share = inputs
        ctx.save_for_backward(x, scale, zero_point)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, zero_point = ctx.saved_tensors
        grad, exact = grads[0], x if x.dtype == torch.float64 else x.float()
        steps, low, high = _spread(exact, scale, zero_point, ctx.codes, ctx.axis)
        codes = exact / steps
        inside = (low < codes) & (codes < high) if ctx.share else (low <= codes) & (codes <= high)
        for_x = torch.where(inside | codes.isnan(), grad, torch.zeros_like(grad))
        if not ctx.share:
            return for_x, None, None, None, None, None
        slope = torch.where(inside, codes.round() - codes, torch.clamp(codes, low, high))
        total = slope * grad.to(slope.dtype) * ctx.share
        axis = None if ctx.axis is None else ctx.axis % x.dim()
        others = [dim for dim in range(x.dim()) if dim != axis]
        for_scale = total.sum(others) if others else total
        return for_x, for_scale.reshape(scale.shape).to(scale.dtype), None, None, None, None
