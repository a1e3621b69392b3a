"""Operands of a linear layer as 8-bit codes: x = (code + offset) · scale."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.numerics import NumberFormat
from chop.numerics.affine_rounding import rounded_codes

MAX_BITS = 8
LOWEST, HIGHEST = -128, 127  # of int8


class NotDeployed(ValueError):
    """Why a layer cannot be deployed, and what to do."""


@dataclass(frozen=True)
class Multiples(abc.ABC):
    """Numbers that are multiples of a scale, from `low` to `high` of them."""

    fmt: Any
    low: int
    high: int
    scale: float | None  # None if each row of an input has its own

    @abc.abstractmethod
    def of(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the multiples of the scale, as float32, and the scale of each row or None."""

    @property
    def offset(self) -> int:
        """What is subtracted from multiples so that int8 holds them."""
        return 0 if self.low >= LOWEST and self.high <= HIGHEST else self.low - LOWEST

    def codes(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return an input as int8 codes, NaN as zero, and the scale of each row or None."""
        multiples, scale = self.of(x.float())
        # an integer has no NaN, and what a cast makes of it depends on the device
        whole = torch.nan_to_num(multiples, nan=0.0)
        return (whole - self.offset if self.offset else whole).to(torch.int8), scale


class GridSteps(Multiples):
    """Of a grid with one scale: multiples are codes without the zero point."""

    def of(self, x: Tensor) -> tuple[Tensor, None]:
        assert self.scale is not None
        if math.frexp(self.scale)[0] == 0.5:  # a power of two: with any rounding and overflow
            return self.fmt(x) * (1 / self.scale), None
        # a tensor on the same device: a GPU divides by a Python number through its reciprocal
        scale = torch.full((), self.scale, dtype=x.dtype, device=x.device)
        return rounded_codes(x, scale, self.low, self.high), None


class RowSteps(Multiples):
    """Of `scale_integer`: each row has the scale of its largest magnitude."""

    def of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        codes, largest = self.fmt.coded(x)
        return codes, largest / torch.full_like(largest, self.fmt.codes[0])


def input_multiples(fmt: Any) -> Multiples:
    """Return how an input of that format becomes codes; refuse a format without 8-bit codes."""
    if fmt.has_row_codes:
        check_width(fmt)
        _, low, high = fmt.codes
        return RowSteps(fmt, low, high, None)
    if (grid := fmt.grid()) is None:
        raise NotDeployed(
            f"is {fmt.name}, which has no 8-bit codes; quantise it to integer, scale_integer or "
            f"affine"
        )
    check_width(fmt)
    if grid.axis is not None:
        raise NotDeployed("has a scale per channel; leave out its axis")
    codes = grid.shifted(-grid.zero_points[0])
    return GridSteps(fmt, codes.low, codes.high, grid.scales[0])


def check_width(fmt: NumberFormat) -> None:
    """Refuse codes that are too wide for the kernel."""
    if fmt.bits > MAX_BITS:
        raise NotDeployed(
            f"has {fmt.bits:g} bits, and the kernel takes {MAX_BITS}; quantise it to at most "
            f"{MAX_BITS} bits"
        )
