"""What functions in C++ are given: addresses of tensors that were checked.

Every tensor that a library of ours reads or writes goes through `address`, whoever made the tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor


def address(
    kernel: str,
    name: str,
    tensor: Tensor,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    *,
    below: int | None = None,
) -> int:
    """Return where a function finds a tensor of exactly this shape and type, without gaps.

    The numbers of an index are places from 0 and `below` a bound. The caller keeps the tensor until
    the function has returned.
    """
    fits = tensor.is_cpu and tensor.dtype == dtype and tensor.shape == shape
    if not fits or not tensor.is_contiguous():
        came = f"{[*tensor.shape]} of {_short(tensor.dtype)} on {tensor.device}"
        gaps = "" if tensor.is_contiguous() else ", with gaps"
        raise ValueError(
            f"{kernel} computes with {name} of the shape {[*shape]} in {_short(dtype)} on the CPU, "
            f"and {name} is {came}{gaps}; give a tensor of that shape"
        )
    if below is not None and tensor.numel():
        low, high = (int(each) for each in torch.aminmax(tensor))
        if low < 0 or high >= below:
            raise ValueError(
                f"{kernel} looks up places from 0 to {below - 1} in {name}, and {name} has numbers "
                f"from {low} to {high}; give places that exist"
            )
    return tensor.data_ptr()


def in_memory_order(tensor: Tensor) -> Tensor:
    """Return all numbers of a tensor without gaps in one row, as they lie in memory."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    return tensor.as_strided((tensor.numel(),), (1,))  # which torch refuses beyond the memory


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
