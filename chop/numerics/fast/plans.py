"""What a format hands to the kernels: a rule and its arguments."""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # that kernels round


@dataclass(frozen=True)
class RoundingPlan:
    """A rule of `kernels/` and its arguments: floats, so that one kernel serves all widths."""

    rule: str
    arguments: tuple[float, ...]
    blocks: bool = False
    infinite: bool = False  # may return infinities
    rows: bool = False  # uses means of each row

    @property
    def kind(self) -> str:
        return "blocks" if self.blocks else "rows" if self.rows else "elements"

    @functools.cached_property
    def padded(self) -> tuple[float, ...]:
        arguments = tuple(map(float, self.arguments))
        return arguments + (0.0,) * (5 - len(arguments))

    @functools.cached_property
    def packed(self) -> Any:
        return (ctypes.c_float * 5)(*self.padded)


class PlannedFormat(Protocol):
    """What the fast paths need to know about a number format."""

    light: ClassVar[bool]

    def __hash__(self) -> int: ...

    def rounded(self, x: Tensor) -> Tensor: ...

    def plan(self, device: torch.device) -> RoundingPlan | None: ...


@functools.lru_cache(maxsize=2**14)
def plan_of(fmt: PlannedFormat, device: torch.device) -> RoundingPlan | None:
    """Return the plan of a format; one that its class inherits does not count.

    A class that derives from a format may round differently, so it has to define its own plan.
    """
    return fmt.plan(device) if "plan" in vars(type(fmt)) else None


def most(plan: RoundingPlan, dtype: torch.dtype) -> float:
    """Return the largest magnitude that a result of that dtype may have."""
    return math.inf if plan.infinite else torch.finfo(dtype).max


def arranged(plan: RoundingPlan, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a tensor without gaps, and one for the result in the same order in memory."""
    if plan.blocks or plan.rows:
        x = x.contiguous()
    result = torch.empty_like(x)
    if result.stride() != x.stride():
        x = x.contiguous()
        result = torch.empty_like(x)
    return x, result


def minifloat_plan(fraction: int, lowest: int, highest: int) -> RoundingPlan:
    """Return the plan for floats of these fraction bits and normal exponents."""
    limit = (2 - 2.0 ** -min(fraction, 23)) * 2.0 ** min(highest, 127)
    narrow = lowest >= -126 and fraction <= 22
    narrow = narrow and max(lowest, min(highest, 127)) + 23 - fraction <= 127
    rule = "minifloat" if narrow else "minifloat_wide"
    return RoundingPlan(rule, (limit, math.inf, 0.0, lowest, fraction))


def block_float_plan(
    significand: float, low: int, high: int, reach: int, fraction: int
) -> RoundingPlan:
    """Return the plan for blocks of floats that share their highest exponent, from low to high."""
    rule = "block_float" if reach <= 62 and fraction <= 22 else "block_float_wide"
    return RoundingPlan(rule, (significand, low, high, reach, fraction), blocks=True)


def reciprocal(n: int) -> tuple[float, float]:
    """Return 1/n as the float32 below it and the remainder, so that zeros keep their signs."""
    fine = 2 ** (23 + n.bit_length())
    return fine // n / fine, fine % n / (n * fine)
