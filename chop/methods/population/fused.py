"""Batch norm of rows in one pass over GPU memory, many times faster than cuDNN."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.numerics import fused

MAX_SAMPLES = 8192  # that fit in one program
TILE = 2048  # numbers that keep the threads of a program busy


def batch_norm(
    x: Tensor,
    statistics: tuple[Tensor, Tensor],
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    epsilon: float,
) -> Tensor:
    """`F.batch_norm` in training for rows [C, B]; `statistics` are the moving mean and variance."""
    few = x.dtype == torch.float32 and 1 < x.shape[1] <= MAX_SAMPLES
    if few and fused.runs_kernels(x):
        operands = (x.contiguous(), weight, bias, statistics, momentum, epsilon)
        normalised: Tensor = _BatchNorm.apply(*operands)
        return normalised
    moving = (*statistics, weight, bias)
    return F.batch_norm(x.unsqueeze(0), *moving, True, momentum, epsilon).squeeze(0)


@functools.cache
def _kernels() -> Any:
    return importlib.import_module("chop.methods.population.kernels.norm")


def _grid(x: Tensor) -> tuple[tuple[int], dict[str, int]]:
    size = 1 << (x.shape[1] - 1).bit_length()
    rows = max(1, TILE // size)
    return (-(-len(x) // rows),), {"ROWS": rows, "SIZE": size}


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        statistics: tuple[Tensor, Tensor],
        momentum: float,
        epsilon: float,
    ) -> Tensor:
        result, mean, inverse = torch.empty_like(x), x.new_empty(len(x)), x.new_empty(len(x))
        grid, sizes = _grid(x)
        affine = (x if weight is None else weight, x if bias is None else bias)
        operands = (x, result, *affine, mean, inverse, *statistics, *x.shape, momentum, epsilon)
        sizes |= {"WEIGHT": weight is not None, "BIAS": bias is not None}
        fused.on_device_of(x, functools.partial(_kernels().forward[grid], *operands, **sizes))
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.has_bias = bias is not None
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        grad = grads[0].contiguous()
        results = torch.empty_like(x), x.new_empty(len(x)), x.new_empty(len(x))
        x_grad, weight_grad, bias_grad = results
        grid, sizes = _grid(x)
        operands = (grad, x, x if weight is None else weight, mean, inverse, *results, *x.shape)
        sizes["WEIGHT"] = weight is not None
        fused.on_device_of(x, functools.partial(_kernels().backward[grid], *operands, **sizes))
        learnt = (weight_grad if weight is not None else None, bias_grad if ctx.has_bias else None)
        return x_grad, *learnt, None, None, None
