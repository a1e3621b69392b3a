"""Gradients of linear layers with ReLUs between whose bits are learned, by the C++ library.

The library is built when first needed, which takes some seconds once per machine, so that a run
does not change its way of adding halfway.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import logging
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from chop.numerics.compiled import FLAGS, find_compiler, fingerprint
from chop.numerics.fast.mode import fused_mode
from chop.numerics.fast.pointers import address
from chop.system.libraries import load_library

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).parents[1] / "kernels" / "chain.cpp"
# products and sums may be contracted, as gradients need no bits of their own
FAST = (*FLAGS, "-ffp-contract=fast")
ROUNDINGS = ("even", "up", "floor")
KERNEL, I64 = "chain", torch.int64
THREAD = 2**20  # products that take several times as long as starting a thread


class ChainLayer(NamedTuple):
    """Where the numbers of a layer are in a row of values; -1 for those that it does not have."""

    inputs: int
    outputs: int
    weight: int
    bias: int
    integer_bits: int  # of the input
    frac_bits: int
    weight_bits: int
    bias_bits: int
    is_signed: bool  # the input
    shares_bits: bool  # all inputs have the same bits
    rounding: int  # the place in ROUNDINGS

    @property
    def size(self) -> int:
        return self.inputs * self.outputs


class Chain:
    """Layers of which each one reads the one before; the last one gives scores of classes.

    `x` are the samples, rows of float32, and `labels` their classes; a row has `count` values.
    """

    def __init__(self, layers: list[ChainLayer], count: int, x: Tensor, labels: Tensor) -> None:
        self.size = sum(layer.size for layer in layers)
        self.depth, self.count = len(layers), count
        numbers = [[*map(int, layer)] for layer in layers]
        self.layout = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        self.x, self.labels = x.contiguous(), labels.contiguous()
        _check_layout(layers, count)
        self._data = (
            address(KERNEL, "x", self.x, (len(x), layers[0].inputs)),
            address(KERNEL, "labels", self.labels, (len(x),), I64, below=layers[-1].outputs),
        )

    @staticmethod
    def is_ready() -> bool:
        """Return whether the library can be used; the first call builds it."""
        return fused_mode() != "off" and _library() is not None

    def gradients(self, values: Tensor, index: Tensor, price: float) -> Tensor:
        """Return the gradients of mean cross-entropy + price · EBOPs for a row of values.

        The samples are those at `index`. Tensors are contiguous, float32 or int64.
        """
        library = _library()
        assert library is not None, "checked"
        result, n = torch.empty_like(values), len(index)
        v, g = (address(KERNEL, "values", each, (self.count,)) for each in (values, result))
        rows = address(KERNEL, "index", index, (n,), I64, below=len(self.x))
        layout = address(KERNEL, "layout", self.layout, (self.depth, len(ChainLayer._fields)), I64)
        threads = max(1, min(torch.get_num_threads(), self.size * n // THREAD))
        sizes = (n, price, threads)
        library.chain_gradients(v, g, self.count, layout, self.depth, *self._data, rows, *sizes)
        return result


def _check_layout(layers: list[ChainLayer], count: int) -> None:
    """Refuse layers that do not follow each other, or whose numbers are not all in a row."""
    for one, other in itertools.pairwise(layers):
        assert one.outputs == other.inputs, "checked"
    for at in layers:
        bits = 1 if at.shares_bits else at.inputs
        ends = [at.weight + at.size, at.weight_bits + at.size]
        ends += [start + bits for start in (at.integer_bits, at.frac_bits)]
        ends += [start + at.outputs for start in (at.bias, at.bias_bits) if at.bias >= 0]
        starts = (at.weight, at.weight_bits, at.integer_bits, at.frac_bits)
        if min(starts) < 0 or max(ends) > count or (at.bias >= 0) != (at.bias_bits >= 0):
            raise ValueError(
                f"{KERNEL} computes with rows of {count} values, and a layer of {at.inputs} inputs "
                f"and {at.outputs} outputs has numbers outside them; give it weights and bits of "
                f"these sizes"
            )


@functools.cache
def _library() -> ctypes.CDLL | None:
    compiler = find_compiler()
    try:
        if compiler is None:
            raise FileNotFoundError("no C++ compiler was found")
        name = f"{KERNEL}-{fingerprint(compiler, SOURCE, FAST)}"
        library = load_library(name, [compiler, *FAST, str(SOURCE)], ["chain_gradients"])
    except (OSError, RuntimeError) as error:
        logger.debug("no C++ kernels (%s): linear layers learn their bits by torch", error)
        return None
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.chain_gradients.argtypes = (
        *(pointer, pointer, count, pointer, count, pointer, pointer, pointer, count),
        *(ctypes.c_float, ctypes.c_int),
    )
    library.chain_gradients.restype = None
    return library
