"""Gradients of linear layers with ReLUs between whose bits are learned, by the C++ library.

The library is built when first needed, which takes some seconds once per machine, so that a run
does not change its way of adding halfway.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from chop.libraries import load_library
from chop.numerics.compiled import FLAGS, find_compiler, fingerprint
from chop.numerics.fast.mode import fused_mode

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).parents[1] / "kernels" / "chain.cpp"
# products and sums may be contracted, as gradients need no bits of their own
FAST = (*FLAGS, "-ffp-contract=fast")
ROUNDINGS = ("even", "up", "floor")
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
    """Layers of which each one reads the one before; the last one gives scores of classes."""

    def __init__(self, layers: list[ChainLayer]) -> None:
        self.size = sum(layer.size for layer in layers)
        self.depth = len(layers)
        numbers = [[*map(int, layer)] for layer in layers]
        self.layout = torch.tensor(numbers, dtype=torch.int64, device="cpu")

    @staticmethod
    def is_ready() -> bool:
        """Return whether the library can be used; the first call builds it."""
        return fused_mode() != "off" and _library() is not None

    def gradients(
        self, values: Tensor, x: Tensor, labels: Tensor, index: Tensor, price: float
    ) -> Tensor:
        """Return the gradients of mean cross-entropy + price · EBOPs for a row of values.

        The samples are the rows of `x` at `index`. Tensors are contiguous, float32 or int64.
        """
        library = _library()
        assert library is not None, "checked"
        result = torch.empty_like(values)
        tensors = (values, result, self.layout, x, labels, index)
        v, g, layout, data, y, rows = (tensor.data_ptr() for tensor in tensors)
        work = self.size * len(index)
        threads = max(1, min(torch.get_num_threads(), work // THREAD))
        sizes = (len(index), price, threads)
        library.chain_gradients(v, g, values.numel(), layout, self.depth, data, y, rows, *sizes)
        return result


@functools.cache
def _library() -> ctypes.CDLL | None:
    compiler = find_compiler()
    try:
        if compiler is None:
            raise FileNotFoundError("no C++ compiler was found")
        name = f"chain-{fingerprint(compiler, SOURCE, FAST)}"
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
