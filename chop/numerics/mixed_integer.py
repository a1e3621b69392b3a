"""Fixed point whose integer and fraction bits may differ by channel or by element."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor

from chop.numerics.base import NumberFormat
from chop.numerics.fast.plans import RoundingPlan
from chop.numerics.grid import Overflow, Rounding
from chop.numerics.integer import Integer

Granularity = Literal["tensor", "channel", "element"]
MAX_BITS = 64


@dataclass(frozen=True)
class MixedInteger(NumberFormat, name="mixed_integer", suffix="MixedInteger"):
    """Fixed point with bits per tensor, channel or element (`granularity`), which may be trained.

    `width` and `frac_width` are what all numbers start with; rounding and overflow are those of
    `integer`. A quantised layer keeps integer and fraction bits as tensors, `weight_frac_bits` and
    so on: integers, or, with `learn`, parameters. While they are trained, the integer bits of
    a weight or bias follow from its values. A number of no bits is always zero, and costs nothing.

    `sample_shape` is the shape of one sample of an activation, and `mean_width` the average of the
    widths in use; `learn_bits` fills in the one, and a layer the other. Without a layer, the format
    rounds like `integer`.
    """

    light: ClassVar[bool] = True
    of_one_tensor: ClassVar[tuple[str, ...]] = ("sample_shape", "mean_width")
    layer_tensors: ClassVar[tuple[str, ...]] = ("integer_bits", "frac_bits")
    shown: ClassVar[tuple[str, ...]] = (
        *("signed", "rounding", "overflow", "granularity", "mean_width"),
    )

    width: int
    frac_width: int
    signed: bool = True
    rounding: Rounding = "even"
    overflow: Overflow = "saturate"
    granularity: Granularity = "tensor"
    learn: bool = False
    sample_shape: tuple[int, ...] | None = None
    mean_width: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 1, MAX_BITS)
        self.fill_in("frac_width", self.width // 2)
        self.require_whole("frac_width", -120, 120)
        self.require_flags("signed", "learn")
        self.require(
            self.width > int(self.signed),
            "width must be at least 2 with a sign, as a number of no other bits is always zero",
        )
        self.require_word("rounding", *get_args(Rounding))
        self.require_word("overflow", *get_args(Overflow))
        self.require_word("granularity", *get_args(Granularity))
        self._check_shape()
        mean: Any = self.mean_width
        number = isinstance(mean, Real) and not isinstance(mean, bool)
        self.require(
            mean is None or (number and 0 <= mean <= MAX_BITS),
            f"mean_width must be a number from 0 to {MAX_BITS}; leave it out",
        )

    def _check_shape(self) -> None:
        shape: Any = self.sample_shape
        if shape is None:
            return
        several = isinstance(shape, list | tuple)
        whole = several and all(isinstance(n, Integral) and int(n) > 0 for n in shape)
        self.require(
            whole, "sample_shape must be a list of positive integers; leave it to learn_bits"
        )
        object.__setattr__(self, "sample_shape", tuple(int(n) for n in shape))

    @property
    def trained_tensors(self) -> tuple[str, ...]:
        return self.layer_tensors if self.learn else ()

    @functools.cached_property
    def _uniform(self) -> Integer:
        """The same numbers with one width for all."""
        rule = (self.signed, self.rounding, self.overflow)
        return Integer(self.width, self.frac_width, *rule, ste=self.ste)

    def uniform(self) -> Integer:
        """Return the format `integer` with the same widths for all numbers."""
        return self._uniform

    def for_operand(self, operand: str, *, non_negative: bool = False) -> Self:
        return replace(self, signed=False) if non_negative else self

    @property
    def integer_width(self) -> int:
        """The integer bits that all numbers start with, without the sign."""
        return self.width - self.frac_width - int(self.signed)

    @property
    def codes(self) -> tuple[int, int]:
        """The smallest and the largest integer."""
        return self._uniform.codes

    def round(self, x: Tensor) -> Tensor:
        return self._uniform.round(x)

    def plan(self, device: torch.device) -> RoundingPlan:
        return self._uniform.plan(device)

    @property
    def bits(self) -> float:
        return self.width if self.mean_width is None else self.mean_width

    @property
    def largest(self) -> float:
        return self._uniform.largest

    @property
    def smallest(self) -> float:
        return self._uniform.smallest

    @property
    def range(self) -> tuple[float, float]:
        return self._uniform.range

    def values(self) -> Tensor:
        return self._uniform.values()

    def with_bits(self, integer_bits: Tensor, frac_bits: Tensor, shape: Sequence[int]) -> Self:
        """Return the format of numbers of this shape with these bits: its grid holds all of them.

        `mean_width` counts each number with its own width, signs included.
        """
        i, f = (bits.detach().round().double().cpu() for bits in (integer_bits, frac_bits))
        i, f = i + 0 * f, f + 0 * i
        live = i + f > 0
        widths = torch.where(live, i + f + int(self.signed), 0.0)
        mean = float(widths.expand(tuple(shape)).mean()) if math.prod(shape) else 0.0
        if not bool(live.any()):
            return replace(self, width=1 + int(self.signed), frac_width=0, mean_width=mean)
        most, fraction = int(i[live].max()), int(f[live].max())
        width = min(most + fraction + int(self.signed), MAX_BITS)
        return replace(self, width=width, frac_width=fraction, mean_width=mean)
