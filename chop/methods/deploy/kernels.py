"""Torch's matrix products of 8-bit numbers, for any number of rows and columns.

The kernels of CUDA take some shapes only; others are filled up with zeros, on a CPU as well, so
that both run the same code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Target = Literal["cuda-int8", "cuda-fp8"]


@dataclass(frozen=True)
class Kernel:
    """The shapes that a kernel of CUDA takes, and the GPUs that have it."""

    multiple: int  # of which inputs and outputs of a layer are
    capability: tuple[int, int]
    gpus: str  # the first that have it


KERNELS: Mapping[Target, Kernel] = {
    "cuda-int8": Kernel(8, (8, 0), "A100, RTX 30"),
    "cuda-fp8": Kernel(16, (8, 9), "H100, L40, RTX 40"),
}
FEW_ROWS, ROWS = 16, 32  # the kernel of int8 takes more than 16 rows
ROW_MULTIPLE = 16  # of fp8


def why_not_on(device: torch.device, target: Target) -> str | None:
    """Return why a device has no kernel for a target; None if it has one."""
    if device.type != "cuda":
        return None
    needed, found = KERNELS[target].capability, torch.cuda.get_device_capability(device)
    if found >= needed:
        return None
    first, has = (".".join(map(str, pair)) for pair in (needed, found))
    return (
        f"target {target!r} needs a GPU of compute capability {first} ({KERNELS[target].gpus}), "
        f"but {torch.cuda.get_device_name(device)} has {has}; use a newer GPU, or run on the CPU"
    )


def filled_up(size: int, multiple: int) -> int:
    """Return the next multiple.

    >>> filled_up(5, 8), filled_up(16, 8), filled_up(0, 8)
    (8, 16, 0)
    """
    return -(-size // multiple) * multiple


def with_zeros(x: Tensor, rows: int, columns: int) -> Tensor:
    """Return a matrix of 8-bit numbers with zeros after its last row and column, row by row.

    Kernels of CUDA may refuse operands that lie in memory column by column.
    """
    more = rows - x.shape[0], columns - x.shape[1]
    if not any(more):
        return x.contiguous()
    # in every 8-bit dtype, zero has the bits of zero; not all of them can be padded
    return F.pad(x.view(torch.int8), (0, more[1], 0, more[0])).view(x.dtype)


def int8_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x · weightᵀ in int32, exactly."""
    rows, outputs = x.shape[0], weight.shape[0]
    few = rows <= FEW_ROWS
    codes, matrix = _padded(x, weight, ROWS if few else rows, KERNELS["cuda-int8"].multiple)
    return torch._int_mm(codes, matrix.t())[:rows, :outputs]


def fp8_product(
    x: Tensor, weight: Tensor, one: Tensor, output: torch.dtype, bias: Tensor | None
) -> Tensor:
    """Return x · weightᵀ + bias for a bias of the output's dtype, which is not float32.

    `one` is the scale of both; products are added in float32 on a CPU, and by the tensor cores of a
    GPU.
    """
    rows, outputs = x.shape[0], weight.shape[0]
    multiple = KERNELS["cuda-fp8"].multiple
    codes, matrix = _padded(x, weight, filled_up(rows, ROW_MULTIPLE), multiple)
    if bias is not None and matrix.shape[0] > outputs:
        bias = F.pad(bias, (0, matrix.shape[0] - outputs))
    y: Tensor = _scaled_mm(codes, matrix, one, output, bias)
    return y[:rows, :outputs]


# torch 2.11 cannot trace F.scaled_mm
@torch.library.custom_op("mase::scaled_mm", mutates_args=())
def _scaled_mm(
    x: Tensor, weight: Tensor, one: Tensor, output: torch.dtype, bias: Tensor | None
) -> Tensor:
    whole = F.ScalingType.TensorWise
    return F.scaled_mm(x, weight.t(), one, whole, one, whole, bias=bias, output_dtype=output)


@_scaled_mm.register_fake
def _(x: Tensor, weight: Tensor, one: Tensor, output: torch.dtype, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0], dtype=output)


def _padded(x: Tensor, weight: Tensor, rows: int, multiple: int) -> tuple[Tensor, Tensor]:
    outputs, inputs = (filled_up(n, multiple) for n in weight.shape)
    return with_zeros(x, rows, inputs), with_zeros(weight, outputs, inputs)
