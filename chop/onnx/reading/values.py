"""Values of an ONNX graph while it is read: known numbers, or results of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from chop.onnx.reading.grids import FileGrid

__all__ = ["OnnxValue", "Size", "is_constant", "known"]

# a size of a tensor for each of the two trial sizes of the free dimensions
Size = tuple[int, int]


@dataclass(frozen=True)
class OnnxValue:
    """A value for two trial sizes of the free dimensions.

    Without a `node`, `samples` are its numbers, which are the same unless they are made of sizes.
    With one, they have shapes and types only. `grid` is what a Quantize/Dequantize pair rounds the
    value to, and that no layer has taken yet; `is_codes` stands between the pair.
    """

    samples: tuple[Tensor, Tensor]
    node: fx.Node | None = None
    name: str = ""
    kind: str = ""  # the type in the file
    grid: FileGrid | None = None
    is_codes: bool = False

    def sample(self, place: int) -> Tensor:
        """Return the numbers for one of the trials."""
        return self.samples[place]

    def shape_of(self, place: int) -> Tensor:
        """Return a tensor without numbers for one of the trials."""
        return self.samples[place].to("meta")

    @property
    def is_known(self) -> bool:
        """Whether its numbers are known."""
        return self.node is None

    @property
    def tensor(self) -> Tensor:
        """The first of the samples."""
        return self.samples[0]

    @property
    def rank(self) -> int:
        return self.samples[0].dim()

    @property
    def dtype(self) -> torch.dtype:
        return self.samples[0].dtype

    @property
    def sizes(self) -> list[Size]:
        """The size of each dimension, for both trials."""
        return list(zip(self.samples[0].shape, self.samples[1].shape, strict=True))

    def with_grid(self, grid: FileGrid | None, *, is_codes: bool = False) -> OnnxValue:
        """Return the same value with another grid to be rounded to."""
        return replace(self, grid=grid, is_codes=is_codes)


@dataclass(frozen=True)
class FreeSize:
    """A size that a node of the graph gives; in trials it is a number."""

    size: Size
    node: fx.Node

    def shape_of(self, place: int) -> int:
        """Return the number for one of the trials."""
        return self.size[place]


def known(tensor: Tensor, name: str = "", kind: str = "") -> OnnxValue:
    """Return a constant."""
    return OnnxValue((tensor, tensor), name=name, kind=kind)


def is_constant(value: OnnxValue | None) -> bool:
    """Whether the numbers of a value are known and do not depend on sizes."""
    if value is None or not value.is_known:
        return False
    first, second = value.samples
    return first is second or (first.shape == second.shape and torch.equal(first, second))


def values_in(args: Any) -> Sequence[OnnxValue]:
    """Return the values in arguments, also in lists of them."""
    if isinstance(args, OnnxValue):
        return [args]
    if isinstance(args, list | tuple):
        return [value for arg in args for value in values_in(arg)]
    if isinstance(args, dict):
        return values_in(list(args.values()))
    return []


def mapped(args: Any, change: Any) -> Any:
    """Return arguments with every value in them replaced by `change` of it."""
    if isinstance(args, OnnxValue | FreeSize):
        return change(args)
    if isinstance(args, list | tuple):
        return type(args)(mapped(arg, change) for arg in args)
    if isinstance(args, dict):
        return {key: mapped(arg, change) for key, arg in args.items()}
    return args
