"""Operands of a linear layer as 8-bit codes: x = (code + offset) · scale."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from chop.numerics import NumberFormat
from chop.numerics.affine import Affine
from chop.numerics.affine_rounding import rounded_codes
from chop.numerics.integer import Integer
from chop.numerics.scale_integer import ScaleInteger

MAX_BITS = 8
LOWEST, HIGHEST = -128, 127  # of int8


class NotDeployed(ValueError):
    """Why a layer cannot be deployed, and what to do."""


@dataclass(frozen=True)
class Multiples(abc.ABC):
    """Numbers that are multiples of a scale, from `low` to `high` of them."""

    takes: ClassVar[type[NumberFormat]]

    fmt: Any

    @property
    @abc.abstractmethod
    def ends(self) -> tuple[int, int]:
        """The smallest and the largest multiple."""

    @property
    @abc.abstractmethod
    def scale(self) -> float | None:
        """The scale of a tensor; None if each row of an input has its own."""

    @abc.abstractmethod
    def of(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the multiples of the scale, as float32, and the scale of each row or None."""

    @property
    def offset(self) -> int:
        """What is subtracted from multiples so that int8 holds them."""
        low, high = self.ends
        return 0 if low >= LOWEST and high <= HIGHEST else low - LOWEST

    def codes(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return an input as int8 codes, NaN as zero, and the scale of each row or None."""
        multiples, scale = self.of(x.float())
        # an integer has no NaN, and what a cast makes of it depends on the device
        whole = torch.nan_to_num(multiples, nan=0.0)
        return (whole - self.offset if self.offset else whole).to(torch.int8), scale


class FixedPoint(Multiples):
    """Of `integer`, with all its ways of rounding and overflow."""

    takes = Integer

    @property
    def ends(self) -> tuple[int, int]:
        ends: tuple[int, int] = self.fmt.codes
        return ends

    @property
    def scale(self) -> float:
        return float(2.0**-self.fmt.frac_width)

    def of(self, x: Tensor) -> tuple[Tensor, None]:
        return self.fmt(x) * 2.0**self.fmt.frac_width, None


class ScaledSteps(Multiples):
    """Of `affine` with one scale: multiples are codes without the zero point."""

    takes = Affine

    @property
    def ends(self) -> tuple[int, int]:
        low, high = self.fmt.codes
        return low - self.fmt.zero_points[0], high - self.fmt.zero_points[0]

    @property
    def scale(self) -> float:
        return float(self.fmt.scales[0])

    def of(self, x: Tensor) -> tuple[Tensor, None]:
        # a tensor on the same device: a GPU divides by a Python number through its reciprocal
        scale = torch.full((), self.scale, dtype=x.dtype, device=x.device)
        return rounded_codes(x, scale, *self.ends), None


class RowSteps(Multiples):
    """Of `scale_integer`: each row has the scale of its largest magnitude."""

    takes = ScaleInteger

    @property
    def ends(self) -> tuple[int, int]:
        _, low, high = self.fmt.codes
        return low, high

    @property
    def scale(self) -> None:
        return None

    def of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        codes, largest = self.fmt.coded(x)
        return codes, largest / torch.full_like(largest, self.fmt.codes[0])


KINDS: dict[type[NumberFormat], type[Multiples]] = {
    kind.takes: kind for kind in (FixedPoint, ScaledSteps, RowSteps)
}


def input_multiples(fmt: NumberFormat) -> Multiples:
    """Return how an input of that format becomes codes; refuse a format without 8-bit codes."""
    kind = KINDS.get(type(fmt))
    if kind is None:
        raise NotDeployed(
            f"is {fmt.name}, which has no 8-bit codes; quantise it to integer, scale_integer or "
            f"affine"
        )
    if fmt.bits > MAX_BITS:
        raise NotDeployed(
            f"has {fmt.bits:g} bits, and the kernel takes {MAX_BITS}; quantise it to at most "
            f"{MAX_BITS} bits"
        )
    if isinstance(fmt, Affine) and fmt.axis is not None:
        raise NotDeployed("has a scale per channel; leave out its axis")
    return kind(fmt)
