"""Ops that move codes, pool them, or find the largest."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.integers.codes import Codes, check_bits
from chop.integers.ops import IntegerOp, MovingOp
from chop.integers.rounding import DOUBLE, SINGLE, exact_sums
from chop.integers.scale import Scale

Sizes = tuple[int, ...]
MAX_POOLS: dict[int, Any] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


@dataclass(frozen=True, eq=False)
class ReshapeCodes(MovingOp):
    """Another shape, without the batch."""

    shape: Sizes

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return x.reshape(x.shape[0], *self.shape)


@dataclass(frozen=True, eq=False)
class PermuteCodes(MovingOp):
    """Another order of dimensions; the batch stays the first."""

    dims: Sizes

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return x.permute(self.dims)


@dataclass(frozen=True, eq=False)
class PickCodes(MovingOp):
    """The codes at some places of a sample, any number of times each.

    `places` has the shape of a result without the batch, and counts the codes row by row.
    """

    places: Tensor

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return x.flatten(1)[:, self.places.flatten()].view(x.shape[0], *self.places.shape)


@dataclass(frozen=True, eq=False)
class PadCodes(MovingOp):
    """Padding with a constant code, or by reflection, repetition or wrapping around."""

    pads: Sizes
    mode: str = "constant"
    code: int = 0

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        if self.mode == "constant":
            return F.pad(x, self.pads, value=self.code)
        # of positions instead of codes, which float could not hold
        shape = x.shape[x.ndim - len(self.pads) // 2 :]
        places = torch.arange(math.prod(shape), dtype=torch.float64, device=x.device)
        moved = F.pad(places.view(1, 1, *shape), self.pads, self.mode).long()
        flat = x.flatten(x.ndim - len(shape))
        return flat[..., moved.flatten()].view(*flat.shape[:-1], *moved.shape[2:])

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        low, high = (self.run(bound)[0] for bound in x.bounds())
        padded = len(self.pads) // 2
        sizes = (n for part in x.scale.parts for n in part.shape[max(0, part.ndim - padded) :])
        if any(n > 1 for n in sizes):
            raise ValueError("its padding has no scale; use one scale for the whole tensor")
        return x.within(low, high, shape=tuple(low.shape))

    @property
    def label(self) -> str:
        return f"Pad {self.mode}"


@dataclass(frozen=True, eq=False)
class MaxPoolCodes(IntegerOp):
    """The largest code of each window; padding never wins."""

    kernel: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    ceil: bool = False
    reach: int = DOUBLE

    def fitted(self, *codes: Codes) -> MaxPoolCodes:
        return replace(self, reach=codes[0].largest)

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        if self.reach < DOUBLE:
            dtype = torch.float32 if self.reach < SINGLE else torch.float64
            return self._pooled(x.to(dtype)).long()
        values: Tensor
        values, ranks = torch.unique(x, return_inverse=True)
        # ranks fit into a float
        return values[self._pooled(ranks.double()).long()]

    def _pooled(self, x: Tensor) -> Tensor:
        settings = (self.kernel, self.stride, self.padding, self.dilation, self.ceil)
        result: Tensor = MAX_POOLS[len(self.kernel)](x, *settings)
        return result

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        low, high = (self.run(bound)[0] for bound in x.bounds())
        scale = x.scale.by_channel(x.shape)
        if scale is None:
            raise ValueError("the elements of a window have different scales")
        return replace(x, scale=scale).within(low, high, shape=tuple(low.shape))


@dataclass(frozen=True, eq=False)
class AvgPoolCodes(IntegerOp):
    """The sum of each window; the scale is divided by the number of its elements."""

    kernel: Sizes
    stride: Sizes
    padding: Sizes
    ceil: bool = False
    count_padding: bool = True
    divisor: int | None = None
    reach: int = 0

    def fitted(self, *codes: Codes) -> AvgPoolCodes:
        reach = codes[0].largest * math.prod(self.kernel)
        check_bits(reach, "an accumulator")
        return replace(self, reach=reach)

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return exact_sums(self._sums, x, self.reach, math.prod(self.kernel))

    def _sums(self, x: Tensor) -> Tensor:
        return self._pooled(x, 1)

    def _pooled(self, x: Tensor, divisor: int | None) -> Tensor:
        rank = len(self.kernel)
        settings = (self.kernel, self.stride, self.padding)
        if rank == 1:  # which has no divisor of ours
            settings = ((1, *self.kernel), (1, *self.stride), (0, *self.padding))
            x = x.unsqueeze(-2)
        pool: Any = F.avg_pool3d if rank == 3 else F.avg_pool2d
        result: Tensor = pool(x, *settings, self.ceil, self.count_padding, divisor)
        return result.squeeze(-2) if rank == 1 else result

    def counts(self, shape: Sizes) -> Tensor:
        """Return the number that the sum at each place is divided by."""
        if self.divisor is not None:
            return torch.tensor(self.divisor)
        ones = torch.ones(1, 1, *shape[1:], dtype=torch.float64)
        return (self._pooled(ones, 1) / self._pooled(ones, None)).round().long()[0]

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        low, high = (self.run(bound)[0] for bound in x.bounds())
        scale = x.scale.by_channel(x.shape)
        if scale is None:
            raise ValueError("the elements of a window have different scales")
        return Codes.reaching(tuple(low.shape), low, high, scale.divided(self.counts(x.shape)))

    def exact_in_float(self, *codes: Codes) -> bool:
        (x,) = codes
        return self.reach < SINGLE and x.scale.divided(self.counts(x.shape)).power_of_two


@dataclass(frozen=True, eq=False)
class ArgMaxCodes(IntegerOp):
    """The first place of the largest code along a dimension, which counts the batch."""

    dim: int
    keepdim: bool = False

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        size = x.shape[self.dim]
        places = torch.arange(size, device=x.device).view(-1, *[1] * (x.ndim - 1 - self.dim))
        largest = x == x.amax(self.dim, keepdim=True)
        return torch.where(largest, places, size).amin(self.dim, keepdim=self.keepdim)

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        shape = tuple(self.run(x.bounds()[0]).shape[1:])
        last = torch.tensor(x.shape[self.dim - 1] - 1)
        return Codes.reaching(shape, torch.zeros_like(last), last, Scale.power(0))
