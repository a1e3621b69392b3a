"""Activations as layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from chop.onnx.reading.errors import GIVE_SIZE
from chop.onnx.reading.grids import FileGrid
from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OnnxNode, reads
from chop.onnx.reading.rounded import rounded_layer
from chop.onnx.reading.values import OnnxValue, is_constant

SELU = (1.6732632423543772, 1.0507009873554805)  # alpha, gamma
ONE_SIXTH = 1 / 6

# operator -> layer, where its attributes are not settings of the layer
LAYERS: dict[str, Callable[[OnnxNode], nn.Module]] = {
    "Softplus": lambda node: nn.Softplus(threshold=80),  # exp(89) overflows
    "ThresholdedRelu": lambda node: nn.Threshold(node.attribute("alpha", 1.0), 0.0),
}


@reads(*LAYERS, takes_grids=True)
def activation(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read an activation of one input."""
    if node[0].is_known:
        return reader.call(LAYERS[node.op](node), reader.settled(node[0]))  # type: ignore[no-any-return]
    return rounded_layer(reader, LAYERS[node.op](node), node[0])


@reads("Relu", commutes=True)
def relu(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a ReLU; it keeps numbers on their grid, as 0 is a code."""
    if node[0].is_known or not node[0].dtype.is_floating_point:
        return reader.call(torch.relu, node[0])  # type: ignore[no-any-return]
    return reader.layer(nn.ReLU(), node[0])  # type: ignore[no-any-return]


@reads("Selu")
def selu(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a SELU; one with other constants is an ELU times a factor."""
    alpha, gamma = node.attribute("alpha", SELU[0]), node.attribute("gamma", SELU[1])
    if all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip((alpha, gamma), SELU, strict=True)):
        return reader.layer(nn.SELU(), node[0])  # type: ignore[no-any-return]
    return reader.call(torch.mul, reader.layer(nn.ELU(alpha), node[0]), gamma)  # type: ignore[no-any-return]


@reads("HardSigmoid", takes_grids=True)
def hard_sigmoid(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a hard sigmoid; torch's has a slope of 1/6."""
    alpha, beta = node.attribute("alpha", 0.2), node.attribute("beta", 0.5)
    if math.isclose(alpha, ONE_SIXTH, rel_tol=1e-6) and beta == 0.5:
        return rounded_layer(reader, nn.Hardsigmoid(), node[0])
    line = reader.call(torch.mul, reader.settled(node[0]), alpha)
    line = reader.call(torch.add, line, beta)
    return reader.layer(nn.Hardtanh(0.0, 1.0), line)  # type: ignore[no-any-return]


@reads("Swish")
def swish(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read x · sigmoid(alpha · x)."""
    alpha = node.attribute("alpha", 1.0)
    if alpha == 1:
        return reader.layer(nn.SiLU(), node[0])  # type: ignore[no-any-return]
    gate = reader.call(torch.sigmoid, reader.call(torch.mul, node[0], alpha))
    return reader.call(torch.mul, node[0], gate)  # type: ignore[no-any-return]


@reads("PRelu")
def prelu(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a PReLU; a slope per channel is a layer's weight."""
    x, slope = node[0], node[1]
    if is_constant(slope) and not x.is_known and slope.dtype.is_floating_point:
        shape = [1] * (x.rank - slope.rank) + list(slope.tensor.shape)
        channels = x.tensor.shape[1] if x.rank > 1 else 1
        others = [size for place, size in enumerate(shape) if place != 1]
        if len(shape) == x.rank > 1 and all(s == 1 for s in others) and shape[1] in (1, channels):
            flat = slope.tensor.reshape(-1)
            layer = nn.PReLU(flat.numel(), device="meta")
            return reader.layer(layer, x, weights={"weight": flat})  # type: ignore[no-any-return]
    negative = reader.call(torch.mul, reader.call(torch.clamp, x, max=0.0), slope)
    return reader.call(torch.add, reader.call(torch.relu, x), negative)  # type: ignore[no-any-return]


@reads("Clip", takes_grids=True)
def clip(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a clip; on codes, it narrows the codes of their grid."""
    low, high = _bounds(node)
    x = node[0]
    if x.is_codes and x.grid is not None:
        return _clipped_codes(reader, x, x.grid.clipped(low, high))
    if low is None and high is None:
        return x
    if x.is_known or not x.dtype.is_floating_point or low is None or high is None:
        bounds = {"min": low} if low is not None else {}
        bounds |= {"max": high} if high is not None else {}
        if bounds == {"min": 0.0} and x.dtype.is_floating_point and not x.is_known:
            return reader.layer(nn.ReLU(), reader.settled(x))  # type: ignore[no-any-return]
        return reader.call(torch.clamp, reader.settled(x), **bounds)  # type: ignore[no-any-return]
    if (low, high) == (0, 6):
        return rounded_layer(reader, nn.ReLU6(), x)
    if low > high:
        raise node.wrong(f"has a minimum of {low} above its maximum of {high}")
    return rounded_layer(reader, nn.Hardtanh(low, high), x)


def _clipped_codes(reader: Reader, x: OnnxValue, grid: FileGrid) -> OnnxValue:
    """Return codes on a part of their grid; without those of negative numbers, after a ReLU.

    Known ones, as of a weight, are clipped at once.
    """
    if x.is_known:
        first, second = (sample.clamp(grid.low, grid.high) for sample in x.samples)
        x = replace(x, samples=(first, first if x.samples[0] is x.samples[1] else second))
        return x.with_grid(grid, is_codes=True)
    assert x.grid is not None
    if grid.low == x.grid.low or grid.positive_width is None:
        return x.with_grid(grid, is_codes=True)
    path = reader.node.path.removesuffix("_clip")  # `ch export` adds the op to the name of a ReLU
    rectified: OnnxValue = reader.layer(nn.ReLU(), x.with_grid(None), path=path)
    return rectified.with_grid(grid.with_negative(), is_codes=True)


def _bounds(node: OnnxNode) -> list[float | None]:
    """Return the bounds, from attributes or inputs; an infinite one is none."""
    given = [(node.numbers(place, "bounds") or [None])[0] for place in (1, 2)]
    given = [node.attribute(k, v) for k, v in zip(("min", "max"), given, strict=True)]
    largest = torch.finfo(torch.float32).max
    return [None if b is None or abs(b) >= largest else b for b in given]


@reads("Softmax", "LogSoftmax", takes_grids=True)
def softmax(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a softmax; before opset 13, it goes over all dimensions from its axis on."""
    layers: dict[str, type[nn.Module]] = {"Softmax": nn.Softmax, "LogSoftmax": nn.LogSoftmax}
    make, x = layers[node.op], node[0]
    if reader.opset >= 13:
        return rounded_layer(reader, make(dim=node.axis()), x)
    axis = node.axis(1)
    if axis == x.rank - 1:
        return rounded_layer(reader, make(dim=axis), x)
    x = reader.settled(x)
    sizes, count = x.sizes, [1, 1]
    for size in sizes[axis:]:
        count = [a * b for a, b in zip(count, size, strict=True)]
    flat = reader.reshaped(x, [*sizes[:axis], (count[0], count[1])])
    result = reader.layer(make(dim=axis), flat)
    return reader.reshaped(result, sizes)


@reads("Dropout")
def dropout(reader: Reader, node: OnnxNode) -> list[OnnxValue | None]:
    """Read dropout, which is off unless the network is trained."""
    if len(node.outputs) > 1 and node.outputs[1]:
        raise node.wrong("gives its mask, which cannot be read; export the network for inference")
    ratio = (node.numbers(1, "ratio") or [node.attribute("ratio", 0.5)])[0]
    if not 0 <= ratio < 1:
        raise node.wrong(f"has a ratio of {ratio}; it must lie between 0 and 1")
    training = node.get(2)
    if training is not None and not (is_constant(training) and not training.tensor.any()):
        raise node.wrong("is in training mode; export the network for inference")
    if node[0].is_known:
        return [node[0]]
    return [reader.layer(nn.Dropout(ratio), node[0])]


@reads("Shrink")
def shrink(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a soft or hard shrink."""
    bias, limit = node.attribute("bias", 0.0), node.attribute("lambd", 0.5)
    if bias not in (0, limit):
        raise node.wrong("has a bias that is neither 0 nor lambd, which cannot be read")
    layer: nn.Module = nn.Softshrink(limit) if bias else nn.Hardshrink(limit)
    return reader.layer(layer, node[0])  # type: ignore[no-any-return]


@reads("Hardmax")
def hardmax(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read the one-hot code of the largest number."""
    axis = node.axis(-1 if reader.opset >= 13 else 1)
    if len(set(node[0].sizes[axis])) > 1:
        raise node.wrong(f"goes over a size that is free; {GIVE_SIZE}")
    places = reader.call(torch.argmax, node[0], axis)
    codes = reader.call(F.one_hot, places, node[0].tensor.shape[axis])
    if axis != node[0].rank - 1:
        codes = reader.call(torch.movedim, codes, -1, axis)
    return reader.method("to", codes, node[0].dtype)  # type: ignore[no-any-return]
