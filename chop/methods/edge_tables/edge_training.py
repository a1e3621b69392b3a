"""A training step of a layer of small networks on edges by `kernels/edge_training.cpp`.

It does the same as `edge_codes`, faster: each edge has its own number of codes, and everything
between the samples and the results is one pass. Sums are in another order, and tanh is within 2e-7.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chop.methods.edge_tables.edge_functions import EdgeFunction, PerceptronOnEdge
from chop.methods.edge_tables.edge_libraries import edge_library
from chop.methods.edge_tables.edge_sums import EdgeNumbers, Sums
from chop.numerics.fast.mode import fused_mode
from chop.numerics.fast.pointers import address

KERNEL = "edge_training"
Pointers = ctypes.c_void_p * 10


def trained_sums(x: Tensor, numbers: EdgeNumbers, function: EdgeFunction) -> Sums | None:
    """Return the sums for samples [networks, batch, inputs]; None if the kernel cannot."""
    if not _suits(x, numbers, function):
        return None
    given = _Given.of(x, numbers, function)
    networks, samples, _, outputs, _ = given.sizes
    shapes = {"y": (networks, samples, outputs), "mean": (networks, outputs)}
    shapes["var"] = shapes["mean"]
    results = {name: x.new_empty(shape) for name, shape in shapes.items()}
    found = [address(KERNEL, name, t, shapes[name]) for name, t in results.items()]
    call = _library().edges_forward  # type: ignore[union-attr]
    made = call(given.pointers(), *found, given.counts, torch.get_num_threads())
    return (results["y"], results["mean"], results["var"]) if made else None


def trained_gradients(
    grad: Tensor, x: Tensor, numbers: EdgeNumbers, function: EdgeFunction, *, for_x: bool
) -> tuple[Tensor | None, list[Tensor]] | None:
    """Return the gradients of x and of all other numbers, as `code_gradients`, or None."""
    if not _suits(x, numbers, function):
        return None
    given, grad = _Given.of(x, numbers, function), grad.contiguous()
    networks, samples, _, outputs, _ = given.sizes
    of_grad = address(KERNEL, "grad", grad, (networks, samples, outputs))
    results = [torch.empty_like(t) if for_x or k else None for k, t in enumerate(given.tensors)]
    call = _library().edges_backward  # type: ignore[union-attr]
    threads = torch.get_num_threads()
    made = call(given.pointers(), of_grad, given.pointers(results), given.counts, threads)
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


class _Given(NamedTuple):
    """The tensors of a call in the order of the kernel, and what shapes they must have."""

    tensors: list[Tensor]
    names: tuple[str, ...]
    sizes: tuple[int, ...]  # networks, samples, inputs, outputs, hidden units

    @classmethod
    def of(cls, x: Tensor, numbers: EdgeNumbers, function: EdgeFunction) -> _Given:
        tensors = [t.contiguous() for t in (x, *numbers[:6], *numbers.parameters)]
        sizes = (*x.shape, numbers.gain.shape[-1], numbers.parameters[0].shape[-1])
        return cls(tensors, ("x", *EdgeNumbers._fields[:6], *function.names), sizes)

    @property
    def counts(self) -> Any:
        return (ctypes.c_int64 * 5)(*self.sizes)

    def pointers(self, tensors: Sequence[Tensor | None] | None = None) -> Any:
        """Return the addresses of these tensors, or of others that have the same shapes."""
        networks, samples, inputs, outputs, hidden = self.sizes
        edges, per_output = (networks, inputs, outputs), (networks, outputs)
        shapes = ((networks, samples, inputs), *4 * (edges,), *2 * (per_output,))
        each = zip(
            self.names,
            self.tensors if tensors is None else tensors,
            (*shapes, *3 * ((*edges, hidden),)),
            strict=True,
        )
        return Pointers(*(None if t is None else address(KERNEL, n, t, s) for n, t, s in each))


@functools.cache
def _library() -> ctypes.CDLL | None:
    library = edge_library(KERNEL, ("edges_forward", "edges_backward"))
    if library is not None:
        pointer, sizes = ctypes.c_void_p, ctypes.c_int64 * 5
        library.edges_forward.argtypes = (Pointers, *3 * (pointer,), sizes, ctypes.c_int)
        library.edges_backward.argtypes = (Pointers, pointer, Pointers, sizes, ctypes.c_int)
    return library
