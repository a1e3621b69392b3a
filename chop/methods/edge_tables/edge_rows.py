"""Rows of tables that samples add up, and that gradients are added to.

The C++ functions of `kernels/edge_rows.cpp` do the work, or torch without a compiler.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.methods.edge_tables.edge_libraries import edge_library
from chop.numerics.fast.mode import fused_mode
from chop.numerics.fast.pointers import address

KERNEL = "edge_rows"
TYPES = {torch.float32: "float32", torch.float64: "float64"}
POINTERS = {"summed": 3, "collected": 5, "multiplied": 4}  # arguments that are tensors


def summed(rows: Tensor, index: Tensor) -> Tensor:
    """[networks, samples, o]: sums of rows [n, o] at indices [networks, samples, inputs]."""
    shape = (*index.shape[:2], rows.shape[-1])
    function = _function("summed", rows)
    if function is None:
        return F.embedding_bag(index.flatten(0, 1), rows, mode="sum").view(shape)
    result = rows.new_empty(shape)
    _call(function, index, {"sums": result}, {"rows": rows})
    return result


def collected(grads: Tensor, weights: Tensor, index: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return sums over samples [count, o] of gradients, and of gradients times weights.

    Gradients are [networks, samples, o], weights and indices [networks, samples, inputs].
    """
    outputs = grads.shape[-1]
    total, weighted = grads.new_zeros(count, outputs), grads.new_zeros(count, outputs)
    function = _function("collected", grads)
    if function is not None:
        results = {"total": total, "weighted": weighted}
        _call(function, index, results, {"grads": grads, "weights": weights})
        return total, weighted
    rows = grads.unsqueeze(2).expand(-1, -1, index.shape[2], -1)
    places = index.reshape(-1, 1).expand(-1, outputs)
    total.scatter_add_(0, places, rows.reshape(-1, outputs))
    weighted.scatter_add_(0, places, (rows * weights.unsqueeze(-1)).reshape(-1, outputs))
    return total, weighted


def multiplied(rows: Tensor, grads: Tensor, index: Tensor) -> Tensor:
    """[networks, samples, inputs]: products of rows [n, o] with gradients of their samples."""
    function = _function("multiplied", rows)
    if function is None:
        taken = F.embedding(index.flatten(0, 1), rows)
        return torch.bmm(taken, grads.reshape(-1, grads.shape[-1], 1)).view(index.shape)
    result = rows.new_empty(index.shape)
    _call(function, index, {"products": result}, {"rows": rows, "grads": grads})
    return result


def _call(
    function: Any, index: Tensor, results: Mapping[str, Tensor], given: Mapping[str, Tensor]
) -> None:
    """Call a function of the library with tensors that have the names of its arguments."""
    kept = {**results, **{name: t.contiguous() for name, t in given.items()}}  # until the end
    rows = next(kept[name] for name in ("rows", "total") if name in kept)
    networks, samples, inputs = index.shape
    count, outputs = rows.shape
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
        ("rows", "total", "weighted"), (count, outputs)
    )
    shapes |= dict.fromkeys(("sums", "grads"), (networks, samples, outputs))
    shapes |= dict.fromkeys(("products", "weights"), (networks, samples, inputs))
    found = [address(KERNEL, name, t, shapes[name], rows.dtype) for name, t in kept.items()]
    index = index.contiguous()
    at = address(KERNEL, "index", index, index.shape, torch.int64, below=count)
    function(*found, at, networks, samples, inputs, outputs, torch.get_num_threads())


def _function(name: str, like: Tensor) -> Any:
    """Return a function of the library, or None if torch has to do."""
    if like.dtype not in TYPES or like.device.type != "cpu" or fused_mode() == "off":
        return None
    library = _library()
    if library is None:
        return None
    function = getattr(library, f"rows_{name}_{TYPES[like.dtype]}")
    if function.argtypes is None:
        tensors = POINTERS[name] * (ctypes.c_void_p,)
        function.argtypes = (*tensors, *4 * (ctypes.c_int64,), ctypes.c_int)
        function.restype = None
    return function


@functools.cache
def _library() -> ctypes.CDLL | None:
    symbols = [f"rows_{name}_{kind}" for name in POINTERS for kind in TYPES.values()]
    return edge_library(KERNEL, symbols)
