"""Exact powers of two: exponents are read and written as bits, never through log2."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chop.numerics.scratch import is_plain, scratch


class FloatLayout(NamedTuple):
    """The bit layout of an IEEE 754 float; `bias` is also the highest exponent."""

    integer: torch.dtype
    mantissa: int  # bits
    bias: int
    root_half: float  # the largest float below the square root of one half

    @property
    def carry(self) -> int:
        """Added to a float's bits, it carries exactly the mantissas above sqrt(2)."""
        return int(2 ** (self.mantissa + 1) * (1 - self.root_half)) - 1


LAYOUTS = {
    torch.float32: FloatLayout(torch.int32, 23, 127, float.fromhex("0x1.6a09e6p-1")),
    torch.float64: FloatLayout(torch.int64, 52, 1023, float.fromhex("0x1.6a09e667f3bccp-1")),
}


class _Reinterpreted(torch.autograd.Function):
    """`Tensor.view(dtype)` with a vmap rule, which torch before 2.13 lacks."""

    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.view(dtype).clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, dtype: torch.dtype) -> Any:
        return _Reinterpreted.apply(x, dtype), in_dims[0]


def reinterpreted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the same bits as another dtype of the same size."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is None:
        if torch.jit.is_tracing():  # type: ignore[attr-defined]
            return torch.view_copy(x, dtype)  # torch.jit can record this, unlike the next line
        return x.view(dtype)
    bits: Tensor = _Reinterpreted.apply(x, dtype)
    return bits


def floor_log2(x: Tensor) -> Tensor:
    """The exponent of the largest power of two that is at most |x|; very low for zero.

    >>> floor_log2(torch.tensor([1.0, 0.75, -5.0, 2.0**-140])).tolist()
    [0, -1, 2, -140]
    """
    layout = LAYOUTS[x.dtype]
    magnitude = x.abs()
    subnormal = magnitude < 2.0 ** (1 - layout.bias)
    # a subnormal number has the field 0; times 2^mantissa it is normal
    magnitude = torch.where(subnormal, magnitude * 2.0**layout.mantissa, magnitude)
    exponent = (reinterpreted(magnitude, layout.integer) >> layout.mantissa) - layout.bias
    exponent = torch.where(subnormal, exponent - layout.mantissa, exponent)
    return torch.where(x == 0, -2 * layout.bias, exponent)


def are_normal(exponent: int | Tensor, dtype: torch.dtype) -> bool:
    """Whether two to each of these exponents is certainly a normal number.

    Returns False for traced tensors, and for devices that would have to be synchronised.
    """
    least = 1 - LAYOUTS[dtype].bias
    if isinstance(exponent, int):
        return exponent >= least
    return exponent.is_cpu and is_plain(exponent) and bool((exponent >= least).all())


def floor_power(x: Tensor) -> Tensor:
    """The largest power of two that is at most |x|, itself a float; 0 for subnormal numbers.

    >>> floor_power(torch.tensor([1.0, 0.75, -5.0, 2.0**-140])).tolist()
    [1.0, 0.5, 4.0, 0.0]
    """
    layout = LAYOUTS[x.dtype]
    exponent_bits = (2 * layout.bias + 1) << layout.mantissa
    return reinterpreted(reinterpreted(x, layout.integer) & exponent_bits, x.dtype)


def ceil_log2(x: Tensor) -> Tensor:
    """The exponent of the smallest power of two that is at least |x|; very low for zero.

    >>> ceil_log2(torch.tensor([1.0, 0.75, -5.0, 2.0**-140])).tolist()
    [0, 0, 3, -140]
    """
    low = -2 * LAYOUTS[x.dtype].bias
    mantissa, exponent = torch.frexp(x)
    power = (mantissa.abs() == 0.5).to(exponent.dtype)
    return torch.where(x == 0, low, (exponent - power).to(LAYOUTS[x.dtype].integer))


def nearest_power(x: Tensor, *, all_exponents: bool = True) -> Tensor:
    """The power of two nearest to |x| in log2, itself a float; 0 for zero.

    The border between 2^k and 2^(k+1) is their geometric mean, which is never a float. Without
    `all_exponents` a subnormal number may become any power up to the smallest normal one.

    >>> nearest_power(torch.tensor([1.0, 1.41, 1.42, -5.0, 2.0**-140])).tolist()
    [1.0, 1.0, 2.0, 4.0, 7.174648137343064e-43]
    """
    layout = LAYOUTS[x.dtype]
    if all_exponents:
        magnitude, lift = x.abs(), 2.0 ** (layout.mantissa + 1)
        subnormal = magnitude < 2.0 ** (1 - layout.bias)
        lifted = torch.where(subnormal, magnitude * lift, magnitude)
        power = nearest_power(lifted, all_exponents=False)
        return torch.where(subnormal, power / lift, power)
    exponent_bits = (2 * layout.bias + 1) << layout.mantissa
    bits = reinterpreted(x, layout.integer) & (exponent_bits | (2**layout.mantissa - 1))
    out = scratch(bits)
    bits = torch.add(bits, layout.carry, out=out)
    return reinterpreted(torch.bitwise_and(bits, exponent_bits, out=out), x.dtype)


def _power(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    layout = LAYOUTS[dtype]
    bits = (exponent.to(layout.integer) + layout.bias) << layout.mantissa
    return reinterpreted(bits, dtype)


def exp2(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """Two to integer exponents, exactly; clamped to the powers that `dtype` can hold.

    >>> exp2(torch.tensor([0, -1, 10, -140]), torch.float32).tolist() == [1, 0.5, 1024, 2.0**-140]
    True
    """
    layout = LAYOUTS[dtype]
    exponent = exponent.clamp(1 - layout.bias - layout.mantissa, layout.bias)
    normal = exponent.clamp(min=1 - layout.bias)
    return _power(normal, dtype) * _power(exponent - normal, dtype)


def scale_by(x: Tensor, exponent: Tensor) -> Tensor:
    """Return `x` times 2**exponent in two steps, as the power itself may under- or overflow."""
    most = 2 * (LAYOUTS[x.dtype].bias - 1)
    exponent = exponent.clamp(-most, most)
    half = exponent >> 1
    return x * _power(half, x.dtype) * _power(exponent - half, x.dtype)


def round_to_step(
    x: Tensor, exponent: Tensor, low: float = -math.inf, high: float = math.inf
) -> Tensor:
    """Round `x` to the nearest multiple of 2**exponent, ties to even, clamped to low and high."""
    return scale_by(scale_by(x, -exponent).round().clamp(low, high), exponent)


def whole_at_most(value: int, dtype: torch.dtype) -> float:
    """The value of `dtype` nearest to an integer that does not exceed it in magnitude.

    >>> whole_at_most(2**31 - 1, torch.float32) == 2**31 - 2**7
    True
    """
    surplus = max(0, value.bit_length() - LAYOUTS[dtype].mantissa - 1)
    magnitude = abs(value) >> surplus << surplus
    return float(magnitude if value > 0 else -magnitude)
