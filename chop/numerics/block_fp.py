"""Block floating point (MSFP): one exponent per block, a sign and a mantissa per element."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.numerics.blocks import BlockFormat
from chop.numerics.exponents import exp2, floor_log2, round_to_step


@dataclass(frozen=True)
class BlockFP(BlockFormat, name="block_fp", suffix="BlockFP"):
    """The block's exponent is the smallest that holds its largest element after rounding.

    `width` counts sign and mantissa; `exponent_bias` None stands for 2^(e-1) - 1.
    """

    width: int
    exponent_width: int
    exponent_bias: int
    block_size: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 2, 24)
        self.require_whole("exponent_width", 1, 8)
        self.fill_in("exponent_bias", 2 ** (self.exponent_width - 1) - 1)
        self.require_whole("exponent_bias", -140, 140)

    def round_blocks(self, x: Tensor, largest: Tensor) -> Tensor:
        mantissa = self.width - 1
        low, high = -self.exponent_bias, 2**self.exponent_width - 1 - self.exponent_bias
        exponent = floor_log2(largest) + 1
        full = exp2(exponent, x.dtype)
        # the largest element may round up to a power of two, which needs the next exponent
        carried = round_to_step(largest, exponent - mantissa) >= full
        exponent = (exponent + carried.to(exponent.dtype)).clamp(low, high)
        limit = (1 - 2.0**-mantissa) * exp2(exponent, x.dtype)
        rounded = round_to_step(x, exponent - mantissa)
        return torch.where(x.isnan(), x, rounded.minimum(limit).maximum(-limit))

    @property
    def element_bits(self) -> int:
        return self.width

    @property
    def shared_bits(self) -> int:
        return self.exponent_width
