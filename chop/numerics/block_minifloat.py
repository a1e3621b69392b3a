"""Block minifloat: small floats with an exponent bias shared by a block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.numerics.blocks import BlockFormat
from chop.numerics.exponents import floor_log2
from chop.numerics.fast.plans import RoundingPlan, block_float_plan
from chop.numerics.minifloat import round_to_minifloat


@dataclass(frozen=True)
class BlockMinifloat(BlockFormat, name="block_minifloat", suffix="BlockMinifloat"):
    """The bias maps the block's largest element to the highest power of two, if it can."""

    width: int
    exponent_width: int
    exponent_bias_width: int
    block_size: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 2, 32)
        self.require_whole("exponent_width", 1, min(8, self.width - 1))
        self.require_whole("exponent_bias_width", 1, 8)

    def round_blocks(self, x: Tensor, largest: Tensor) -> Tensor:
        fraction = self.width - self.exponent_width - 1
        top = 2**self.exponent_width - 1
        bias = (top - floor_log2(largest)).clamp(0, 2**self.exponent_bias_width - 1)
        return round_to_minifloat(x, fraction, 1 - bias, top - bias)

    def plan(self, device: torch.device) -> RoundingPlan:
        fraction = self.width - self.exponent_width - 1
        top = 2**self.exponent_width - 1
        low = top - (2**self.exponent_bias_width - 1)
        return block_float_plan(2 - 2.0 ** -min(fraction, 23), low, top, top - 1, fraction)

    @property
    def element_bits(self) -> int:
        return self.width

    @property
    def shared_bits(self) -> int:
        return self.exponent_bias_width
