"""Normalisations."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.onnx.reading.errors import GIVE_SIZE
from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OnnxNode, reads
from chop.onnx.reading.values import OnnxValue

BATCH: dict[int, type[Any]] = {
    2: nn.BatchNorm1d,
    3: nn.BatchNorm1d,
    4: nn.BatchNorm2d,
    5: nn.BatchNorm3d,
}
INSTANCE: dict[int, type[Any]] = {
    3: nn.InstanceNorm1d,
    4: nn.InstanceNorm2d,
    5: nn.InstanceNorm3d,
}


def _constants(node: OnnxNode, *names: str) -> dict[str, Tensor]:
    found = {name: node.constant(place, name) for place, name in enumerate(names, 1)}
    return {name: value.tensor for name, value in found.items() if value is not None}


@reads("BatchNormalization")
def batch_norm(reader: Reader, node: OnnxNode) -> list[OnnxValue]:
    """Read a batch norm; torch's momentum is the share of the new statistics."""
    if node.attribute("training_mode", 0) or any(node.outputs[1:]):
        raise node.wrong("is in training mode; export the network for inference")
    if not node.attribute("spatial", 1) or node[0].rank not in BATCH:
        raise node.wrong("does not normalise channels of 2 to 5 dimensions, so it cannot be read")
    tensors = _constants(node, "weight", "bias", "running_mean", "running_var")
    channels = node[0].tensor.shape[1]
    if len(tensors) != 4 or any(t.shape != (channels,) for t in tensors.values()):
        raise node.wrong(f"needs four constants of {channels} numbers; export the network again")
    settings = {"eps": node.attribute("epsilon", 1e-5)}
    momentum = 1 - node.attribute("momentum", 0.9)
    layer = BATCH[node[0].rank](channels, momentum=momentum, device="meta", **settings)
    tensors["num_batches_tracked"] = torch.tensor(0)
    return [reader.layer(layer, node[0], weights=tensors)]


@reads("InstanceNormalization")
def instance_norm(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read an instance norm."""
    tensors = _constants(node, "weight", "bias")
    if node[0].rank not in INSTANCE:
        raise node.wrong("does not normalise channels of 3 to 5 dimensions, so it cannot be read")
    channels = node[0].tensor.shape[1]
    if any(t.shape != (channels,) for t in tensors.values()):
        raise node.wrong(f"needs weights of {channels} numbers; export the network again")
    eps = node.attribute("epsilon", 1e-5)
    layer = INSTANCE[node[0].rank](channels, eps=eps, affine=True, device="meta")
    return reader.layer(layer, node[0], weights=tensors)  # type: ignore[no-any-return]


@reads("LayerNormalization")
def layer_norm(reader: Reader, node: OnnxNode) -> list[OnnxValue]:
    """Read a layer norm over the last dimensions."""
    if any(node.outputs[1:]):
        raise node.wrong("gives its mean, which cannot be read; export the network for inference")
    sizes = _last_sizes(node)
    tensors = _constants(node, "weight", "bias")
    tensors = _expanded(node, tensors, sizes)
    eps = node.attribute("epsilon", 1e-5)
    layer = nn.LayerNorm(sizes, eps, bias="bias" in tensors, device="meta")
    return [reader.layer(layer, node[0], weights=tensors)]


@reads("RMSNormalization")
def rms_norm(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a norm by the root of the mean of squares."""
    sizes = _last_sizes(node)
    tensors = _expanded(node, _constants(node, "weight"), sizes)
    layer = nn.RMSNorm(sizes, node.attribute("epsilon", 1e-5), device="meta")
    return reader.layer(layer, node[0], weights=tensors)  # type: ignore[no-any-return]


def _expanded(node: OnnxNode, tensors: dict[str, Tensor], sizes: list[int]) -> dict[str, Tensor]:
    """Return weights in the shape of the dimensions that are normalised."""
    for tensor in tensors.values():
        shape = list(tensor.shape)
        last = sizes[len(sizes) - len(shape) :]
        if len(shape) > len(sizes) or any(
            a not in (1, b) for a, b in zip(shape, last, strict=True)
        ):
            raise node.wrong(f"has weights of shape {shape} for {sizes}; export the network again")
    return {name: tensor.expand(sizes) for name, tensor in tensors.items()}


def _last_sizes(node: OnnxNode) -> list[int]:
    """Return the sizes of the dimensions from the axis on."""
    sizes = node[0].sizes[node.axis() :]
    if any(a != b for a, b in sizes):
        raise node.wrong(f"normalises a dimension whose size is free; {GIVE_SIZE}")
    return [a for a, _ in sizes]


@reads("GroupNormalization")
def group_norm(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a group norm; before opset 21, its weights are one per group."""
    groups, channels = node.attribute("num_groups", 1), node[0].tensor.shape[1]
    tensors = _constants(node, "weight", "bias")
    if groups < 1 or channels % groups:
        raise node.wrong(f"has {groups} groups of {channels} channels; export the network again")
    reader.count(2 * channels)
    tensors = {
        name: t.repeat_interleave(channels // groups) if t.numel() == groups != channels else t
        for name, t in tensors.items()
    }
    if any(t.shape != (channels,) for t in tensors.values()):
        raise node.wrong(f"needs weights of {channels} numbers; export the network again")
    layer = nn.GroupNorm(groups, channels, node.attribute("epsilon", 1e-5), device="meta")
    return reader.layer(layer, node[0], weights=tensors)  # type: ignore[no-any-return]


@reads("LpNormalization")
def lp_norm(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a division by the norm along an axis."""
    power, axis = node.attribute("p", 2), node.axis()
    if power not in (1, 2):
        raise node.wrong(f"has a norm of order {power}; only 1 and 2 are defined")
    tiny = torch.finfo(node[0].dtype).tiny
    return reader.call(F.normalize, node[0], float(power), axis, tiny)  # type: ignore[no-any-return]


@reads("LRN")
def local_response_norm(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a norm over neighbouring channels."""
    values = [node.attribute(name, default) for name, default in
              (("size", 1), ("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))]  # fmt: skip
    if values[0] % 2 == 0 or not math.isfinite(values[1]):
        raise node.wrong("goes over an even number of channels, which torch places otherwise")
    return reader.layer(nn.LocalResponseNorm(*values), node[0])  # type: ignore[no-any-return]
