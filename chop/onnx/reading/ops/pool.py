"""Pools."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from chop.onnx.reading.errors import GIVE_SIZE
from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OnnxNode, reads
from chop.onnx.reading.rounded import rounded_layer
from chop.onnx.reading.values import OnnxValue, known
from chop.onnx.reading.windows import OnnxWindow, pad_sides

MAX: dict[int, type[Any]] = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGE: dict[int, type[Any]] = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
ALL_AVERAGE: dict[int, type[Any]] = {
    1: nn.AdaptiveAvgPool1d,
    2: nn.AdaptiveAvgPool2d,
    3: nn.AdaptiveAvgPool3d,
}
ALL_MAX: dict[int, type[Any]] = {
    1: nn.AdaptiveMaxPool1d,
    2: nn.AdaptiveMaxPool2d,
    3: nn.AdaptiveMaxPool3d,
}


def _dims(node: OnnxNode) -> int:
    dims = node[0].rank - 2
    if dims not in MAX:
        raise node.wrong("is not over 1, 2 or 3 dimensions; only such pools can be read")
    return dims


@reads("MaxPool", commutes=True)
def max_pool(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a pool of largest numbers."""
    if len(node.outputs) > 1 and node.outputs[1]:
        raise node.wrong("gives indices, which cannot be read; export the network without them")
    dims, window = _dims(node), OnnxWindow.of(node, ())
    first, last = window.pads(node[0], node)
    data, pads = node[0], first
    # torch takes even padding up to half of a window
    if first != last or any(2 * p > k for p, k in zip(first, window.kernel, strict=True)):
        if node.attribute("ceil_mode", 0):
            raise node.wrong("has ceil_mode with uneven padding, which cannot be read")
        data, pads = pad_sides(reader, data, (first, last), -math.inf), [0] * dims
    layer = MAX[dims](
        window.kernel, window.strides, tuple(pads), window.dilations,
        ceil_mode=bool(node.attribute("ceil_mode", 0)),
    )  # fmt: skip
    return reader.layer(layer, data)  # type: ignore[no-any-return]


@reads("AveragePool", takes_grids=True)
def average_pool(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a pool of means; padding that differs by side and is not counted is divided out."""
    dims, window = _dims(node), OnnxWindow.of(node, ())
    if any(dilation != 1 for dilation in window.dilations):
        raise node.wrong("is dilated, which cannot be read; use a convolution")
    first, last = window.pads(node[0], node)
    counts, ceil = bool(node.attribute("count_include_pad", 0)), node.attribute("ceil_mode", 0)
    settings = {"ceil_mode": bool(ceil), "count_include_pad": counts}
    even = first == last and all(2 * p <= k for p, k in zip(first, window.kernel, strict=True))
    if even:
        layer = AVERAGE[dims](window.kernel, window.strides, tuple(first), **settings)
        return _averaged(reader, layer, node[0])
    if ceil:
        raise node.wrong("has ceil_mode with uneven padding, which cannot be read")
    data = pad_sides(reader, node[0], (first, last), 0.0)
    layer = AVERAGE[dims](window.kernel, window.strides)
    result = _averaged(reader, layer, data)
    return (
        result
        if counts
        else reader.call(torch.mul, result, _shares(reader, node, layer, first, last))
    )


def _averaged(reader: Reader, layer: nn.Module, value: OnnxValue) -> OnnxValue:
    """Call a layer; only pools over two dimensions have formats."""
    value = value if value.rank == 4 else reader.settled(value)
    return rounded_layer(reader, layer, value)


def _shares(
    reader: Reader, node: OnnxNode, layer: nn.Module, first: list[int], last: list[int]
) -> OnnxValue:
    """Return the size of a window over how many of its numbers are not padding."""
    sizes = node[0].sizes[2:]
    if any(a != b for a, b in sizes):
        raise node.wrong(f"has padding on an input whose size is free; {GIVE_SIZE}")
    padded = [a + f + e for (a, _), f, e in zip(sizes, first, last, strict=True)]
    reader.count(math.prod(padded))
    sides = [side for pair in zip(first, last, strict=True) for side in reversed(pair)][::-1]
    ones = torch.nn.functional.pad(torch.ones(1, 1, *(a for a, _ in sizes)), sides)
    return known((1 / layer(ones)).to(node[0].dtype), "shares")


@reads("GlobalAveragePool", takes_grids=True)
def global_average_pool(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read the mean of each channel."""
    return _averaged(reader, ALL_AVERAGE[_dims(node)](1), node[0])


@reads("GlobalMaxPool", commutes=True)
def global_max_pool(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read the largest number of each channel."""
    return reader.layer(ALL_MAX[_dims(node)](1), node[0])  # type: ignore[no-any-return]
