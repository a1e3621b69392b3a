"""Block log: signed powers of two whose exponent bias is shared by a block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.numerics.blocks import BlockFormat
from chop.numerics.exponents import exp2, floor_log2
from chop.numerics.log import nearest_exponent


@dataclass(frozen=True)
class BlockLog(BlockFormat, name="block_log", suffix="BlockLog"):
    """The bias puts the block's largest element into the highest power of two.

    There is no zero: it becomes the block's smallest value, unless `zero` grants it a code.
    """

    width: int
    exponent_bias_width: int
    block_size: tuple[int, ...]
    zero: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 2, 9)
        self.require_whole("exponent_bias_width", 1, 8)

    def round_blocks(self, x: Tensor, largest: Tensor) -> Tensor:
        top = 2 ** (self.width - 1) - 1
        below = floor_log2(largest)
        above = below + (exp2(below, x.dtype) < largest).to(below.dtype)
        bias = (top - above).clamp(0, 2**self.exponent_bias_width - 1)
        exponent = torch.where(x == 0, -bias, nearest_exponent(x).maximum(-bias))
        magnitude = exp2(exponent.minimum(top - bias), x.dtype)
        rounded = torch.where(x < 0, -magnitude, magnitude)
        rounded = torch.where(x.isnan(), x, rounded)
        return torch.where(x == 0, 0.0, rounded) if self.zero else rounded

    @property
    def element_bits(self) -> int:
        return self.width

    @property
    def shared_bits(self) -> int:
        return self.exponent_bias_width
