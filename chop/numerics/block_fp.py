"""Block floating point (MSFP): one exponent per block, a sign and a mantissa per element."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.numerics.blocks import BlockFormat
from chop.numerics.exponents import LAYOUTS, floor_log2, round_to_step, scale_by
from chop.numerics.fast.plans import RoundingPlan


@dataclass(frozen=True)
class BlockFP(BlockFormat, name="block_fp", suffix="BlockFP"):
    """One exponent per block, that of its largest element, which saturates unless `carry` is set.

    `width` counts sign and mantissa; `exponent_bias` defaults to 2^(e-1) - 1. An element that would
    round up to the next power of two becomes the largest mantissa. With `carry` the block takes the
    next exponent instead, so that the element is rounded to nearest and all others half as finely.
    """

    width: int
    exponent_width: int
    exponent_bias: int
    block_size: tuple[int, ...]
    carry: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_flags("carry")
        self.require_whole("width", 2, 24)
        self.require_whole("exponent_width", 1, 8)
        self.fill_in("exponent_bias", 2 ** (self.exponent_width - 1) - 1)
        self.require_whole("exponent_bias", -126, 140)

    def round_blocks(self, x: Tensor, largest: Tensor) -> Tensor:
        mantissa = self.width - 1
        limit = 2**mantissa - 1
        low, high = -self.exponent_bias, 2**self.exponent_width - 1 - self.exponent_bias
        high = min(high, LAYOUTS[x.dtype].bias + 1)
        exponent = floor_log2(largest) + 1
        if self.carry:
            carried = scale_by(largest, mantissa - exponent).round() > limit
            exponent = exponent + carried.to(exponent.dtype)
        return round_to_step(x, exponent.clamp(low, high) - mantissa, -limit, limit)

    def plan(self, device: torch.device) -> RoundingPlan:
        mantissa = self.width - 1
        low, high = -self.exponent_bias, 2**self.exponent_width - 1 - self.exponent_bias
        arguments = (mantissa, low, min(high, 128), 2**mantissa - 1, self.carry)
        return RoundingPlan("block_fp", arguments, blocks=True)

    @property
    def element_bits(self) -> int:
        return self.width

    @property
    def shared_bits(self) -> int:
        return self.exponent_width
