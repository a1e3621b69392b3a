"""A training step of a layer of small networks on edges by `kernels/edge_training.cpp`.

It does the same as `edge_codes`, faster: each edge has its own number of codes, and everything
between the samples and the results is one pass. Sums are in another order, and tanh is within 2e-7.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from chop.layers.edge_functions import EdgeFunction, PerceptronOnEdge
from chop.layers.edge_libraries import edge_library
from chop.layers.edge_sums import EdgeNumbers, Sums
from chop.numerics.fast.mode import fused_mode

Pointers = ctypes.c_void_p * 10


def trained_sums(x: Tensor, numbers: EdgeNumbers, function: EdgeFunction) -> Sums | None:
    """Return the sums for samples [networks, batch, inputs]; None if the kernel cannot."""
    if not _suits(x, numbers, function):
        return None
    networks, samples, _ = x.shape
    outputs = numbers.gain.shape[-1]
    y, mean, var = x.new_empty(networks, samples, outputs), *x.new_empty(2, networks, outputs)
    tensors = _flat(x, numbers)
    results = [_pointer(t) for t in (y, mean, var)]
    call = _library().edges_forward  # type: ignore[union-attr]
    made = call(_pointers(tensors), *results, _sizes(x, numbers), torch.get_num_threads())
    return (y, mean, var) if made else None


def trained_gradients(
    grad: Tensor, x: Tensor, numbers: EdgeNumbers, function: EdgeFunction, *, for_x: bool
) -> tuple[Tensor | None, list[Tensor]] | None:
    """Return the gradients of x and of all other numbers, as `code_gradients`, or None."""
    if not _suits(x, numbers, function):
        return None
    tensors, grad = _flat(x, numbers), grad.contiguous()
    results = [torch.empty_like(t) if for_x or k else None for k, t in enumerate(tensors)]
    call = _library().edges_backward  # type: ignore[union-attr]
    sizes, threads = _sizes(x, numbers), torch.get_num_threads()
    made = call(_pointers(tensors), _pointer(grad), _pointers(results), sizes, threads)
    return (results[0], [t for t in results[1:] if t is not None]) if made else None


def _suits(x: Tensor, numbers: EdgeNumbers, function: EdgeFunction) -> bool:
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and numbers.mean is None
        and isinstance(function, PerceptronOnEdge)
        and fused_mode() != "off"
        and _library() is not None
    )


def _flat(x: Tensor, numbers: EdgeNumbers) -> list[Tensor]:
    """Return the tensors in the order of the kernel."""
    return [t.contiguous() for t in (x, *numbers[:6], *numbers.parameters)]


def _sizes(x: Tensor, numbers: EdgeNumbers) -> Any:
    networks, samples, inputs = x.shape
    outputs, hidden = numbers.gain.shape[-1], numbers.parameters[0].shape[-1]
    return (ctypes.c_int64 * 5)(networks, samples, inputs, outputs, hidden)


def _pointer(tensor: Tensor) -> Any:
    return ctypes.c_void_p(tensor.data_ptr())


def _pointers(tensors: list[Tensor] | list[Tensor | None]) -> Any:
    return Pointers(*(None if t is None else t.data_ptr() for t in tensors))


@functools.cache
def _library() -> ctypes.CDLL | None:
    return edge_library("edge_training", ("edges_forward", "edges_backward"))
