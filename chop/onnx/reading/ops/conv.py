"""Convolutions."""

from __future__ import annotations

import operator as python
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import nn

from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OnnxNode, reads
from chop.onnx.reading.values import OnnxValue, is_constant
from chop.onnx.reading.weighted import weighted
from chop.onnx.reading.windows import OnnxWindow, padded

CONVS: dict[int, type[Any]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, type[Any]] = {
    1: nn.ConvTranspose1d,
    2: nn.ConvTranspose2d,
    3: nn.ConvTranspose3d,
}
FUNCTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def _dims(node: OnnxNode) -> int:
    dims = node[1].rank - 2
    if dims not in CONVS or node[0].rank != dims + 2:
        raise node.wrong(
            f"has a weight of {node[1].rank} and an input of {node[0].rank} dimensions; only "
            f"convolutions over 1, 2 or 3 dimensions can be read"
        )
    return dims


@reads("Conv", takes_grids=True)
def conv(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a convolution; padding that differs by side becomes a node before it."""
    dims = _dims(node)
    window = OnnxWindow.of(node, node[1].tensor.shape[2:])
    data, before = padded(reader, node[0], window.pads(node[0], node), node)
    group, bias = node.attribute("group", 1), node.get(2)
    settings = {"stride": window.strides, "padding": before, "dilation": window.dilations}
    if not is_constant(node[1]) or not (bias is None or is_constant(bias)):
        operands = [reader.settled(v) for v in (data, node[1])]
        operands += [] if bias is None else [reader.settled(bias)]
        return reader.call(FUNCTIONS[dims], *operands, groups=group, **settings)  # type: ignore[no-any-return]
    outputs, inputs = node[1].tensor.shape[0], node[1].tensor.shape[1] * group
    _check_groups(node, inputs, outputs, group)
    layer = CONVS[dims](
        inputs, outputs, tuple(window.kernel), groups=group, bias=bias is not None,
        device="meta", **settings,
    )  # fmt: skip
    tensors = {"weight": node[1].tensor}
    if bias is not None:
        tensors["bias"] = bias.tensor
    axes = {place: place for place in range(dims + 2)}
    return weighted(reader, layer, node, tensors, axes, bias=bias, data=data)


def _check_groups(node: OnnxNode, inputs: int, outputs: int, group: int) -> None:
    if group < 1 or outputs % group or inputs < 1 or not all(node[1].tensor.shape):
        raise node.wrong("has groups or sizes that do not fit its weight; export it again")
    channels = node[0].tensor.shape[1]
    if channels != inputs:
        raise node.wrong(
            f"takes {inputs} channels, but its input has {channels}; export the network again"
        )


@reads("ConvTranspose", takes_grids=True)
def conv_transpose(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a transposed convolution; sides that are cut unevenly are cut by a node after it."""
    dims, group, bias = _dims(node), node.attribute("group", 1), node.get(2)
    if not is_constant(node[1]) or not (bias is None or is_constant(bias)):
        raise node.wrong("computes its weight while it runs; only constants can be read")
    window = OnnxWindow.of(node, node[1].tensor.shape[2:])
    extra = node.attribute("output_padding") or [0] * dims
    first, last = window.cuts(node[0], node, extra)
    even = first == last and all(cut >= 0 for cut in first)
    inputs, outputs = node[1].tensor.shape[0], node[1].tensor.shape[1] * group
    _check_groups(node, inputs, outputs, group)
    # torch takes an output padding only below stride or dilation
    small = all(
        e < max(s, d) for e, s, d in zip(extra, window.strides, window.dilations, strict=True)
    )
    if not small:
        raise node.wrong("has an output_padding that is not below its stride")
    layer = TRANSPOSED[dims](
        inputs, outputs, tuple(window.kernel), stride=window.strides, dilation=window.dilations,
        padding=tuple(first) if even else 0, output_padding=tuple(extra), groups=group,
        bias=bias is not None, device="meta",
    )  # fmt: skip
    tensors = {"weight": node[1].tensor} | ({} if bias is None else {"bias": bias.tensor})
    axes = {place: place for place in range(dims + 2)}
    result = weighted(reader, layer, node, tensors, axes, bias=bias)
    return result if even else _cut(reader, node, result, first, last)


def _cut(
    reader: Reader, node: OnnxNode, value: OnnxValue, first: Sequence[int], last: Sequence[int]
) -> OnnxValue:
    if any(cut < 0 for cut in (*first, *last)):
        raise node.wrong("has an output_shape larger than its windows reach; export it again")
    slices = [slice(a, -b if b else None) for a, b in zip(first, last, strict=True)]
    places = (slice(None), slice(None), *slices)
    return reader.call(python.getitem, value, places)  # type: ignore[no-any-return]
