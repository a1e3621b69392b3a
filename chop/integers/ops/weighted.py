"""Sums of products with constant weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from chop.integers.codes import MAX_BITS, Codes, TooWide, bits_for, check_bits
from chop.integers.op import IntegerOp, OnDevices
from chop.integers.rounding import DOUBLE, SINGLE, exact_sums
from chop.integers.scale import Scale
from chop.registry import not_defined

MAX_WEIGHT = 2**44  # sum of the magnitudes of the weights of one output


def far_bias(bits: int) -> str:
    """Return the refusal of a bias on a grid that is too far from that of the products."""
    return (
        f"needs an accumulator of {bits} bits for the sum of its products and its bias; at most "
        f"{MAX_BITS} are allowed; use narrower formats, or a bias_frac_width that is nearer to "
        f"data_in_frac_width + weight_frac_width"
    )


@dataclass(frozen=True, eq=False)
class WeightedOp(IntegerOp):
    """Sums of products with constant weights, shifted left by `shift`, plus the bias.

    Rows of `weight` are outputs; `weight_scale` has one entry, or one per output. The bias has the
    scale of the result. `reach` bounds |b| + Σ|x·w| in steps of the result, for inputs that occur.
    """

    accumulates = True

    weight: Tensor
    bias: Tensor | None
    weight_scale: Scale
    weight_width: int
    shift: int = 0
    reach: int = 0
    kept: OnDevices = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kept = OnDevices(weight=self.weight, bias=self.bias)
        object.__setattr__(self, "kept", kept)

    def products(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the sums of products in the dtype of the tensors."""
        raise not_defined(self, "products", "weighted sum")

    @property
    def rank(self) -> int:
        """The dimensions after the channels."""
        raise not_defined(self, "rank", "weighted sum")

    def along_channels(self, x: Tensor) -> Tensor:
        """Return one number per output in a shape that broadcasts to a result without batch."""
        return x.reshape(-1, *[1] * self.rank) if x.ndim else x

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        inside = self.shift == 0 and self.reach < DOUBLE

        def sums(part: Tensor) -> Tensor:
            weight = self.kept.get("weight", part)
            assert weight is not None
            return self.products(part, weight, self.kept.get("bias", part) if inside else None)

        total = exact_sums(sums, x, self.reach >> self.shift, self.weight_reach)
        if inside:
            return total
        total <<= self.shift
        bias = self.kept.get("bias", total)
        return total if bias is None else total + self.along_channels(bias)

    @cached_property
    def weight_reach(self) -> int:
        return int(self.weight.abs().flatten(1).sum(1).max())

    def fitted(self, *codes: Codes) -> Self:
        (x,) = codes
        if self.weight_reach >= MAX_WEIGHT:
            raise TooWide(
                f"has weights of {self.weight_width} bits on one grid; use a weight format with "
                f"a smaller range"
            )
        magnitude = torch.maximum(*(bound.abs() for bound in x.bounds())).double()
        total = self.products(magnitude, self.weight.abs().double())
        largest = int(total.max().item() * (1 if total.max() < DOUBLE else 1 + 2**-20))
        bias = 0 if self.bias is None else int(self.bias.abs().max())
        reach = (largest << self.shift) + bias
        if bits_for(-largest, largest) <= MAX_BITS < bits_for(-reach, reach):
            raise TooWide(far_bias(bits_for(-reach, reach)))
        check_bits(reach, "an accumulator")
        return replace(self, reach=reach)

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        low, high = x.bounds()
        # twice the middle and twice the spread: both even, or both odd
        middle = self._sums(low + high, self.weight)
        spread = self._sums(high - low, self.weight.abs())
        ends = (middle >> 1) - (spread >> 1), (middle >> 1) + (spread >> 1) + (middle & 1)
        bias = 0 if self.bias is None else self.along_channels(self.bias)
        least, most = ((total << self.shift) + bias for total in ends)
        parts = (self.along_channels(part) for part in self.weight_scale.parts)
        scale = x.scale.times(Scale(*parts)).times(Scale.power(-self.shift))
        return Codes.reaching(least.shape[1:], least[0], most[0], scale)

    def _sums(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the exact sums for twice the inputs that occur, and weights no larger."""
        bound = 2 * (self.reach >> self.shift)
        return exact_sums(
            lambda part: self.products(part, weight.to(part.dtype)), x, bound, self.weight_reach
        )

    def exact_in_float(self, *codes: Codes) -> bool:
        scales = (*(x.scale for x in codes), self.weight_scale)
        return self.reach < SINGLE and all(scale.power_of_two for scale in scales)

    @property
    def label(self) -> str:
        return f"{type(self).__name__} w{self.weight_width}"
