"""What a formula needs to know of the weights of a layer; counted once for each set of codes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from chop.hardware.estimate.coefficients import FORMULA as K
from chop.integers.scale import trailing_zeros

__all__ = ["WeightFacts", "effective_bits", "inside_counts", "signed_digits", "weight_facts"]

Array = np.ndarray[Any, np.dtype[np.int64]]
MAX_CACHED = 64  # ranges of inputs whose sums are remembered


@dataclass(frozen=True, eq=False)
class WeightFacts:
    """The weights of a layer in numbers, over all of its outputs.

    `positive` and `negative` are the sums of the weights of each sign, for each row. `bias` has
    codes on its own grid, 2^`bias_exponent`.
    """

    rows: int  # outputs that share inputs: the size of the matrix that is multiplied with
    fan_in: int
    outputs: int  # with at least one product
    count: int  # all outputs
    products: int
    bits: int  # of the magnitudes of the weights, over all products
    digits: int  # signed digits other than zero, over all products
    exponent: int  # of the weights
    positive: Array
    negative: Array
    bias: Array | None = None
    bias_exponent: int = 0
    bias_bits: int = 0  # over all outputs
    sums: dict[tuple[int, int, int], tuple[int, int]] = field(default_factory=dict, repr=False)

    @property
    def unshared_adders(self) -> int:
        """The additions of all signed digits, if no partial sum is used twice."""
        return max(0, self.digits - self.outputs)

    @cached_property
    def depth(self) -> float:
        """The levels of a tree that adds the digits of an output."""
        return math.log2(max(1.0, self.digits / max(1, self.outputs)))

    @cached_property
    def mean_bits(self) -> float:
        """The bits of a weight other than zero."""
        return self.bits / max(1, self.products)

    @cached_property
    def shared_adders(self) -> float:
        """The adders that are left when equal partial sums are computed once."""
        places = max(1, self.count // self.rows)
        each = self.unshared_adders / places
        shared: float = K.adders * each**K.adders_power * self.fan_in**K.adders_wide
        return places * min(each, shared)

    def bounds(self, low: int, high: int, exponent: int) -> tuple[int, int]:
        """Return the lowest and the highest sum, in steps of 2^`exponent` of the products."""
        key = (low, high, exponent)
        if key not in self.sums:
            if len(self.sums) >= MAX_CACHED:
                self.sums.clear()
            self.sums[key] = self._bounds(*key)
        return self.sums[key]

    def _bounds(self, low: int, high: int, exponent: int) -> tuple[int, int]:
        least = low * self.positive - high * self.negative
        most = high * self.positive - low * self.negative
        if self.bias is not None:
            shift = max(0, exponent - self.bias_exponent)
            added = self.bias << max(0, self.bias_exponent - exponent)
            least, most = (least << shift) + added, (most << shift) + added
        return int(least.min()), int(most.max())

    def shift(self, exponent: int) -> int:
        """Return how far products in steps of 2^`exponent` are shifted to the bias's grid."""
        has_bias = self.bias is not None and bool(self.bias.any())
        return max(0, exponent - self.bias_exponent) if has_bias else 0


def signed_digits(codes: Array) -> Array:
    """Return how many digits other than zero each code has, in its canonical signed form.

    >>> signed_digits(np.array([0, 1, 7, -6, 11])).tolist()
    [0, 1, 2, 2, 3]
    """
    size = np.abs(codes)
    return np.bitwise_count(3 * size ^ size).astype(np.int64)


def effective_bits(codes: Array) -> Array:
    """Return the bits of each magnitude from its first to its last one.

    >>> effective_bits(np.array([0, 1, 4, 5, -6, 127])).tolist()
    [0, 1, 1, 3, 2, 7]
    """
    size = np.abs(codes)
    odd = size // np.maximum(1, size & -size)
    return np.where(size > 0, np.ceil(np.log2(odd + 1.0)), 0).astype(np.int64)


def inside_counts(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[Array, int]:
    """Return for each place of a kernel how often it lies on the input, and the places it takes.

    On the padding nothing is multiplied.
    """
    each, places = [], 1
    for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True):
        steps = (n + 2 * p - d * (k - 1) - 1) // s + 1
        at = np.arange(k)[:, None] * d + np.arange(steps) * s - p
        each.append(((at >= 0) & (at < n)).sum(axis=1).tolist())
        places *= steps
    counts = [math.prod(row) for row in itertools.product(*each)]
    return np.array(counts, dtype=np.int64).reshape(tuple(kernel)), places


def weight_facts(
    weight: Tensor,
    exponent: int,
    bias: tuple[Tensor, int] | None,
    inside: Array | int,
    places: int,
) -> WeightFacts:
    """Count the weights of a layer: codes of shape (rows, inputs, …), and the bias with its grid.

    `inside` has the number of products of each place of the kernel, and `places` the number of
    results of each row; a linear layer has one of each for every vector that it multiplies.
    """
    codes = weight.detach().cpu().numpy().astype(np.int64)
    flat = codes.reshape(len(codes), -1)
    used = codes != 0
    per_row = flat.any(axis=1)
    added = None if bias is None else bias[0].detach().cpu().numpy().astype(np.int64)
    return WeightFacts(
        rows=len(codes),
        fan_in=flat.shape[1],
        outputs=int(per_row.sum()) * places,
        count=len(codes) * places,
        products=int((used * inside).sum()),
        bits=int((effective_bits(codes) * inside).sum()),
        digits=int((signed_digits(codes) * inside).sum()),
        exponent=exponent,
        positive=np.maximum(flat, 0).sum(axis=1),
        negative=np.maximum(-flat, 0).sum(axis=1),
        bias=added,
        bias_exponent=bias[1] if bias is not None else 0,
        bias_bits=0 if added is None else int(effective_bits(added).sum()) * places,
    )


def bias_grid(bias: Tensor, exponent: int) -> tuple[Tensor, int]:
    """Return codes in steps of 2^`exponent` as the smallest codes on the coarsest grid."""
    if not bool(bias.any()):
        return bias, exponent
    zeros = int(trailing_zeros(bias[bias != 0].abs()).min())
    return bias >> zeros, exponent + zeros
