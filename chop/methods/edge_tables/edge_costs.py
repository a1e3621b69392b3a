"""What a layer of tables on edges costs, from the bits of its edges."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from chop.numerics.learned import Cost
from chop.registry import UnknownName

HALF = 5  # inputs of a function of which two share a LUT of six inputs


def edge_cost(bits_in: Tensor, bits_out: Tensor, cost: Cost, *, exact: bool) -> Tensor:
    """Return the cost of edges [inputs, outputs] with so many bits, without their signs.

    An edge with m bits in and n bits out, signs included, counts m · n as `ebops` and `bitops`,
    2^m · n bits as `model_size`, and as `lut` a table of m inputs and n outputs and an adder of n
    bits. Edges of no bits count nothing. `exact` counts a LUT for any two outputs of a small
    table, and one addition less than terms.
    """
    live = ((bits_in > 0) & (bits_out > 0)).to(bits_in.dtype)
    m, n = bits_in.clamp(min=0) + 1, bits_out.clamp(min=0) + 1
    if cost in ("ebops", "bitops"):
        return (live * m * n).sum()
    if cost == "model_size":
        return (live * torch.exp2(m) * n).sum()
    if cost != "lut":
        raise UnknownName("cost", cost, list(get_args(Cost)))
    small = torch.full_like(m, 0.5) if exact else m / (2 * HALF)
    table = torch.where(m >= HALF, torch.exp2(m - HALF - 1), small) * n
    total = (live * (table + n)).sum()
    if not exact:
        return total
    terms = live.sum(0)
    return total - ((live * n).sum(0) / terms.clamp(min=1)).sum()
