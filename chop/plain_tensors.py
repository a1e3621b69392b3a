"""Which tensors of a file hold plain numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def why_not_plain(tensor: Tensor) -> str | None:
    """What a tensor is instead of an array of numbers; None for one that is."""
    if tensor.is_nested:
        return "is nested"
    if tensor.is_quantized:
        return "is quantised"
    if tensor.layout is not torch.strided:
        return "is sparse"
    if tensor.is_meta:
        return "has no values, as it is on the device meta"
    return None
