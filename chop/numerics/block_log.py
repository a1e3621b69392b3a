"""Block log: signed powers of two with an exponent bias shared by a block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.numerics.blocks import BlockFormat
from chop.numerics.exponents import LAYOUTS, are_normal, ceil_log2, exp2, nearest_power
from chop.numerics.fast.plans import RoundingPlan
from chop.numerics.log import signed_power
from chop.numerics.scratch import scratch


@dataclass(frozen=True)
class BlockLog(BlockFormat, name="block_log", suffix="BlockLog"):
    """The bias maps the block's largest element to the highest power of two, if it can.

    There is no zero: it becomes the block's smallest value, unless `zero` gives each element one
    more bit to mark it. `exponent_bias_width` defaults to 8.
    """

    width: int
    exponent_bias_width: int
    block_size: tuple[int, ...]
    zero: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 2, 9)
        self.fill_in("exponent_bias_width", 8)
        self.require_whole("exponent_bias_width", 1, 8)
        self.require_flags("zero")

    def round_blocks(self, x: Tensor, largest: Tensor) -> Tensor:
        top = 2 ** (self.width - 1) - 1
        bias = (top - ceil_log2(largest)).clamp(0, 2**self.exponent_bias_width - 1)
        lowest, highest = exp2(-bias, x.dtype), exp2(top - bias, x.dtype)
        power = nearest_power(x, all_exponents=not are_normal(-bias, x.dtype))
        power = torch.maximum(power, lowest, out=scratch(power))
        power = torch.minimum(power, highest, out=scratch(power))
        return signed_power(x, power, zero=self.zero)

    def plan(self, device: torch.device) -> RoundingPlan:
        top, highest_bias = 2 ** (self.width - 1) - 1, 2**self.exponent_bias_width - 1
        arguments = (top, highest_bias, LAYOUTS[torch.float32].carry, self.zero)
        return RoundingPlan("block_log", arguments, blocks=True)

    @property
    def element_bits(self) -> int:
        return self.width + self.zero

    @property
    def shared_bits(self) -> int:
        return self.exponent_bias_width
