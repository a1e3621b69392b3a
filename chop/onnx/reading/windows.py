"""Windows of convolutions and pools: strides, dilations, and padding by its three spellings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F

from chop.onnx.reading.errors import GIVE_SIZE
from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OnnxNode
from chop.onnx.reading.values import OnnxValue

__all__ = ["OnnxWindow", "Pads", "padded"]

Pads = tuple[list[int], list[int]]  # before and after, for each dimension
SAME = ("SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True)
class OnnxWindow:
    """A window that moves over the dimensions of a tensor behind its channels."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]

    @classmethod
    def of(cls, node: OnnxNode, kernel: Sequence[int]) -> OnnxWindow:
        """Return the window of a node."""
        kernel = tuple(node.attribute("kernel_shape") or kernel)
        strides = tuple(node.attribute("strides") or [1] * len(kernel))
        dilations = tuple(node.attribute("dilations") or [1] * len(kernel))
        counts = {len(kernel), len(strides), len(dilations), node[0].rank - 2}
        if len(counts) > 1 or any(n < 1 for n in (*kernel, *strides, *dilations)):
            raise node.wrong("has a window that does not fit its input; export the network again")
        return cls(kernel, strides, dilations)

    @property
    def reach(self) -> list[int]:
        """How many numbers a window spans in each dimension."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    def pads(self, data: OnnxValue, node: OnnxNode) -> Pads:
        """Return the numbers that are added before and after each dimension."""
        given = self._given(node)
        if given is not None:
            return given
        total = [
            self._total(size, reach, stride, node)
            for size, reach, stride in zip(data.sizes[2:], self.reach, self.strides, strict=True)
        ]
        return _halves(total, node)

    def _given(self, node: OnnxNode) -> Pads | None:
        """Return the pads that a node has as numbers; None if they follow from sizes."""
        way, dims = node.attribute("auto_pad", "NOTSET"), len(self.kernel)
        if way in SAME:
            return None
        if way not in ("NOTSET", "VALID"):
            raise node.wrong(f"has auto_pad {way!r:.40}, which ONNX does not define")
        pads = node.attribute("pads") if way == "NOTSET" else None
        pads = pads or [0] * (2 * dims)
        if len(pads) != 2 * dims:
            raise node.wrong("has pads that do not fit its input; export the network again")
        return list(pads[:dims]), list(pads[dims:])

    def _total(self, sizes: tuple[int, int], reach: int, stride: int, node: OnnxNode) -> int:
        """Return how much padding gives one result per stride."""
        totals = {max(0, (math.ceil(size / stride) - 1) * stride + reach - size) for size in sizes}
        if len(totals) > 1:
            raise node.wrong(
                f"has padding that depends on the size of its input, which is free; {GIVE_SIZE}"
            )
        return totals.pop()

    def cuts(self, data: OnnxValue, node: OnnxNode, extra: Sequence[int]) -> Pads:
        """Return what a transposed convolution cuts off before and after each dimension."""
        shape = node.attribute("output_shape")
        given = self._given(node)
        if shape is None and given is not None:
            return given
        total = []
        for place, (size, other) in enumerate(data.sizes[2:]):
            if size != other and shape is not None:
                raise node.wrong(f"has an output_shape for a size that is free; {GIVE_SIZE}")
            stride, reach = self.strides[place], self.reach[place]
            out = size * stride if shape is None else shape[place - len(self.kernel)]
            total.append(stride * (size - 1) + extra[place] + reach - out)
        return _halves(total, node, lower=node.attribute("auto_pad", "NOTSET") != "SAME_UPPER")


def _halves(total: Sequence[int], node: OnnxNode, *, lower: bool | None = None) -> Pads:
    """Return the halves of paddings; SAME_LOWER puts the odd number first, SAME_UPPER last."""
    if lower is None:
        lower = node.attribute("auto_pad") == "SAME_LOWER"
    small = [n // 2 for n in total]
    large = [n - n // 2 for n in total]
    return (large, small) if lower else (small, large)


def padded(
    reader: Reader, data: OnnxValue, pads: Pads, node: OnnxNode, fill: float = 0.0
) -> tuple[OnnxValue, tuple[int, ...]]:
    """Return data and the padding that a layer adds on both sides; an uneven one is added here."""
    first, last = pads
    if first == last and all(pad >= 0 for pad in first):
        return data, tuple(first)
    return pad_sides(reader, data, pads, fill), (0,) * len(first)


def pad_sides(reader: Reader, data: OnnxValue, pads: Pads, fill: float) -> OnnxValue:
    """Add numbers before and after the last dimensions; 0 stays on every grid."""
    grid = data.grid if fill == 0 and data.grid is not None and data.grid.axis is None else None
    data = data.with_grid(None) if grid is not None else reader.settled(data)
    sides = [side for pair in zip(*pads, strict=True) for side in reversed(pair)][::-1]
    result: OnnxValue = reader.call(F.pad, data, sides, "constant", fill)
    return result.with_grid(grid)
