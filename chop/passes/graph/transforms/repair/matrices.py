"""A layer as a product of matrices: rows of inputs times a matrix of weights, for each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from chop.ir.ops import TransposedLinear

Positions = tuple[Tensor, ...]  # an index for each dimension that is not summed over


def widened(x: Tensor) -> Tensor:
    """Return a tensor in half precision as float32, others as they are."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


@dataclass(frozen=True)
class LayerMatrix:
    """Weights as [groups, outputs, inputs] and inputs as [groups, rows, inputs].

    A row of a convolution is the patch of one position.
    """

    layer: Any

    @classmethod
    def of(cls, layer: nn.Module) -> Self | None:
        """Return the form of a linear layer or convolution; None for any other layer."""
        linear = isinstance(layer, nn.Linear | TransposedLinear)
        conv = isinstance(layer, _ConvNd) and not isinstance(layer, _ConvTransposeNd)
        return cls(layer) if linear or conv else None

    @property
    def groups(self) -> int:
        return self.layer.groups if isinstance(self.layer, _ConvNd) else 1

    def matrix(self, weight: Tensor) -> Tensor:
        """Return a tensor in the shape of the weight as a matrix for each group."""
        rows = weight.T if isinstance(self.layer, TransposedLinear) else weight
        return rows.reshape(self.groups, rows.shape[0] // self.groups, -1)

    def tensor(self, matrix: Tensor) -> Tensor:
        """Return a matrix for each group in the shape of the weight; undoes `matrix`."""
        shape = self.layer.weight.shape
        if isinstance(self.layer, TransposedLinear):
            return matrix[0].T.contiguous()
        return matrix.reshape(shape)

    def offsets(self, bias: Tensor | None) -> Tensor | float:
        """Return a bias so that it can be added to [groups, rows, outputs]."""
        return 0.0 if bias is None else bias.reshape(self.groups, 1, -1)

    def draw(self, x: Tensor, count: int, generator: torch.Generator) -> Positions:
        """Draw `count` positions at random; all positions if there are fewer."""
        sizes = self._sizes(x)
        total = sizes.numel()
        flat = torch.arange(total)
        if count < total:
            flat = torch.randint(total, (count,), generator=generator)
        return tuple(torch.unravel_index(flat.to(x.device), sizes))

    def rows(self, x: Tensor, positions: Positions) -> Tensor:
        """Return the inputs at these positions."""
        return (
            self._patches(x, positions) if isinstance(self.layer, _ConvNd) else x[positions][None]
        )

    def _sizes(self, x: Tensor) -> torch.Size:
        if not isinstance(self.layer, _ConvNd):
            return x.shape[:-1]
        windows = self._windows(x)
        return torch.Size([windows.shape[0], *windows.shape[2 : 2 + self._rank]])

    def _patches(self, x: Tensor, positions: Positions) -> Tensor:
        windows = self._windows(x).movedim(1, 1 + self._rank)  # [n, *positions, channels, *kernel]
        patches = windows[positions].flatten(2)
        return patches.reshape(len(patches), self.groups, -1).transpose(0, 1)

    @property
    def _rank(self) -> int:
        return len(self.layer.kernel_size)

    def _windows(self, x: Tensor) -> Tensor:
        """Return a view [n, channels, *positions, *kernel] of the padded input."""
        conv = self.layer
        batched = x if x.ndim == self._rank + 2 else x[None]
        windows = F.pad(batched, padding_of(conv), _MODES.get(conv.padding_mode, conv.padding_mode))
        sizes = zip(conv.kernel_size, conv.stride, conv.dilation, strict=True)
        for dim, (size, stride, dilation) in enumerate(sizes):
            windows = windows.unfold(2 + dim, dilation * (size - 1) + 1, stride)[..., ::dilation]
        return windows


_MODES = {"zeros": "constant"}


def padding_of(conv: _ConvNd) -> list[int]:
    """Return the padding of a convolution as F.pad takes it: of the last dimension first."""
    sides: Sequence[tuple[int, int]]
    if conv.padding == "valid":
        sides = [(0, 0)] * len(conv.kernel_size)
    elif conv.padding == "same":
        totals = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
        sides = [(total // 2, total - total // 2) for total in totals]
    else:
        sides = [(int(side), int(side)) for side in conv.padding]
    return [side for pair in reversed(sides) for side in pair]
