"""Microscaling formats: small elements along one dimension share a power-of-two scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.numerics.blocks import BlockFormat, block_shape
from chop.numerics.exponents import ceil_log2, floor_log2, round_to_step
from chop.numerics.fast.plans import RoundingPlan, block_float_plan
from chop.numerics.minifloat import round_to_minifloat

SCALE_BITS = 8
LOWEST_SCALE, HIGHEST_SCALE = -127, 127  # E8M0, where the last code is NaN


@dataclass(frozen=True)
class _MX(BlockFormat):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("block_dim", -8, 7)
        self.require_flags("ocp")

    def layout(self, rank: int) -> tuple[Sequence[int], int]:
        """Blocks are rows along `block_dim`; other dimensions are not joined."""
        if rank == 0 or len(self.sizes) > 1:
            return super().layout(rank)
        along: int = vars(self)["block_dim"]
        law = f"block_dim must be one of the tensor's {rank} dimensions"
        self.require(-rank <= along < rank, law)
        rows = [1] * rank
        rows[along] = self.sizes[0]
        return rows, 0

    def power_blocks(self, shape: Sequence[int]) -> tuple[int, int] | None:
        if not shape or len(self.sizes) > 1:
            return None
        axis = vars(self)["block_dim"] % len(shape)
        return axis, block_shape(shape, *self.layout(len(shape)))[axis]

    @property
    def shared_bits(self) -> int:
        return SCALE_BITS


@dataclass(frozen=True)
class MXInt(_MX, name="mxint", suffix="MXInt"):
    """Integers of `width` bits; the scale is the power of two above the block's largest element.

    With `ocp` the scale is the power of two below, as in the OCP specification (MXINT8).
    """

    width: int
    block_size: tuple[int, ...]
    block_dim: int = -1
    ocp: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 2, 24)

    def round_blocks(self, x: Tensor, largest: Tensor) -> Tensor:
        exponent = floor_log2(largest) if self.ocp else ceil_log2(largest)
        fraction = self.width - 2 if self.ocp else self.width - 1
        high = 2 ** (self.width - 1) - 1
        low = -high if self.ocp else -high - 1
        return round_to_step(x, exponent.clamp(LOWEST_SCALE, HIGHEST_SCALE) - fraction, low, high)

    def plan(self, device: torch.device) -> RoundingPlan:
        high = 2 ** (self.width - 1) - 1
        low = high if self.ocp else high + 1
        arguments = (self.width - 1 - self.ocp, high, low, self.ocp)
        return RoundingPlan("mxint", arguments, blocks=True)

    @property
    def element_bits(self) -> int:
        return self.width


@dataclass(frozen=True)
class MXFP(_MX, name="mxfp", suffix="MXFP"):
    """Small floats; the scale maps the block's largest element to the highest power of two.

    All codes are numbers. With `ocp`, E4M3 and E5M2 reserve the codes of NaN and infinity, as in
    the OCP specification; its other element types have none.
    """

    exponent_width: int
    frac_width: int
    block_size: tuple[int, ...]
    block_dim: int = -1
    ocp: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("exponent_width", 1, 8)
        self.require_whole("frac_width", 0, 22)

    @property
    def element(self) -> tuple[int, int, float]:
        """Exponent of the smallest normal element; exponent and significand of the largest."""
        bias = 2 ** (self.exponent_width - 1) - 1
        top = 2**self.exponent_width - 1 - bias
        kind = (self.exponent_width, self.frac_width)
        if self.ocp and kind == (4, 3):
            return 1 - bias, top, 1.75  # the last code is NaN: 448
        if self.ocp and kind == (5, 2):
            return 1 - bias, top - 1, 1.75  # the last exponent is infinity and NaN: 57344
        return 1 - bias, top, 2 - 2.0**-self.frac_width

    def round_blocks(self, x: Tensor, largest: Tensor) -> Tensor:
        lowest, top, significand = self.element
        scale = (floor_log2(largest) - top).clamp(LOWEST_SCALE, HIGHEST_SCALE)
        return round_to_minifloat(x, self.frac_width, lowest + scale, top + scale, significand)

    def plan(self, device: torch.device) -> RoundingPlan:
        lowest, top, significand = self.element
        low, high = top + LOWEST_SCALE, top + HIGHEST_SCALE
        return block_float_plan(significand, low, high, top - lowest, self.frac_width)

    @property
    def element_bits(self) -> int:
        return 1 + self.exponent_width + self.frac_width
