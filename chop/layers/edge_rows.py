"""Rows of tables that samples add up, and that gradients are added to.

The C++ functions of `kernels/edge_rows.cpp` do the work, or torch without a compiler. They are
built when first needed, which takes a second once per machine, so that a run does not change its
way of adding halfway.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.libraries import load_library
from chop.numerics.compiled import FLAGS, find_compiler
from chop.numerics.fast.mode import fused_mode

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).parent / "kernels" / "edge_rows.cpp"
TYPES = {torch.float32: "float32", torch.float64: "float64"}
POINTERS = {"summed": 3, "collected": 5, "multiplied": 4}  # arguments that are tensors


def summed(rows: Tensor, index: Tensor) -> Tensor:
    """[networks, samples, o]: sums of rows [n, o] at indices [networks, samples, inputs]."""
    shape = (*index.shape[:2], rows.shape[-1])
    function = _function("summed", rows)
    if function is None:
        return F.embedding_bag(index.flatten(0, 1), rows, mode="sum").view(shape)
    result = rows.new_empty(shape)
    _call(function, (result, rows, index), index, rows.shape[-1])
    return result


def collected(grads: Tensor, weights: Tensor, index: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return sums over samples [count, o] of gradients, and of gradients times weights.

    Gradients are [networks, samples, o], weights and indices [networks, samples, inputs].
    """
    outputs = grads.shape[-1]
    total, weighted = grads.new_zeros(count, outputs), grads.new_zeros(count, outputs)
    function = _function("collected", grads)
    if function is not None:
        _call(function, (total, weighted, grads, weights, index), index, outputs)
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
    _call(function, (result, rows, grads, index), index, rows.shape[-1])
    return result


def _call(function: Any, tensors: tuple[Tensor, ...], index: Tensor, outputs: int) -> None:
    kept = [tensor.contiguous() for tensor in tensors]  # until the call is over
    assert all(tensor.is_contiguous() for tensor in tensors[: len(tensors) - 3])
    pointers = (tensor.data_ptr() for tensor in kept)
    function(*pointers, *index.shape, outputs, torch.get_num_threads())


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
    compiler = find_compiler()
    try:
        if compiler is None:
            raise FileNotFoundError("no C++ compiler was found")
        made_of = (SOURCE.read_text(), *FLAGS, os.path.realpath(compiler), *_features())
        digest = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
        symbols = [f"rows_{name}_{kind}" for name in POINTERS for kind in TYPES.values()]
        return load_library(f"edges-{digest}", [compiler, *FLAGS, str(SOURCE)], symbols)
    except (OSError, RuntimeError) as error:
        logger.debug("no C++ kernels (%s): tables on edges run as plain torch operations", error)
        return None


def _features() -> list[str]:
    """Return what the processor can do, as machines may share a home directory."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return [line for line in lines if line.startswith(("flags", "Features"))][:1]
