# mypy: ignore-errors
"""Triton kernels for batch norm over contiguous rows.

This directory has no __init__.py, so that walking the packages does not import triton.
"""

import triton
import triton.language as tl


@triton.jit
def _tile(rows, size, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Return the rows of this program, the offsets of their numbers, and masks for both."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, SIZE)
    exists = (row < rows)[:, None] & (column < size)[None, :]
    return row, row[:, None] * size + column[None, :], row < rows, exists


@triton.jit
def _moved(ptr, at, new, momentum, mask):
    old = tl.load(ptr + at, mask=mask, other=0.0)
    tl.store(ptr + at, old + (new - old) * momentum, mask=mask)


@triton.jit
def forward(
    x_ptr, y_ptr, weight_ptr, bias_ptr, mean_ptr, inverse_ptr, moving_mean_ptr, moving_var_ptr,
    rows, size, momentum, epsilon,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row, at, real, exists = _tile(rows, size, ROWS, SIZE)
    x = tl.load(x_ptr + at, mask=exists, other=0.0)
    mean = tl.sum(x, 1) / size
    apart = tl.where(exists, x - mean[:, None], 0.0)
    squares = tl.sum(apart * apart, 1)
    inverse = 1.0 / tl.sqrt(squares / size + epsilon)
    y = apart * inverse[:, None]
    if WEIGHT:
        y = y * tl.load(weight_ptr + row, mask=real, other=0.0)[:, None]
    if BIAS:
        y = y + tl.load(bias_ptr + row, mask=real, other=0.0)[:, None]
    tl.store(y_ptr + at, y, mask=exists)
    tl.store(mean_ptr + row, mean, mask=real)
    tl.store(inverse_ptr + row, inverse, mask=real)
    _moved(moving_mean_ptr, row, mean, momentum, real)
    _moved(moving_var_ptr, row, squares / (size - 1), momentum, real)


@triton.jit
def backward(
    grad_ptr, x_ptr, weight_ptr, mean_ptr, inverse_ptr, x_grad_ptr, weight_grad_ptr, bias_grad_ptr,
    rows, size,
    WEIGHT: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row, at, real, exists = _tile(rows, size, ROWS, SIZE)
    grad = tl.load(grad_ptr + at, mask=exists, other=0.0)
    x = tl.load(x_ptr + at, mask=exists, other=0.0)
    mean = tl.load(mean_ptr + row, mask=real, other=0.0)
    inverse = tl.load(inverse_ptr + row, mask=real, other=0.0)
    normal = tl.where(exists, (x - mean[:, None]) * inverse[:, None], 0.0)
    along, total = tl.sum(grad * normal, 1), tl.sum(grad, 1)
    scale = inverse
    if WEIGHT:
        scale = scale * tl.load(weight_ptr + row, mask=real, other=0.0)
    rest = grad - (total / size)[:, None] - normal * (along / size)[:, None]
    tl.store(x_grad_ptr + at, rest * scale[:, None], mask=exists)
    tl.store(weight_grad_ptr + row, along, mask=real)
    tl.store(bias_grad_ptr + row, total, mask=real)
