"""Normalisations."""

from __future__ import annotations

import math
from typing import Any

import torch

from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.registry import writes


def or_constant(call: OpCall, name: str | None, size: int, value: float) -> str:
    """Return a parameter, or a vector of one number if there is none."""
    return name or call.constant(torch.full((size,), value, dtype=call.given_facts().dtype))


@writes("batch_norm1d", "batch_norm2d", "batch_norm3d", "sync_batch_norm")
def batch_norm_layer(call: OpCall) -> str:
    norm: Any = call.module
    if norm.running_mean is None or norm.running_var is None:
        raise call.refusal("normalises by the statistics of each batch; track running statistics")
    size = norm.num_features
    weight = or_constant(call, call.parameter("weight"), size, 1.0)
    bias = or_constant(call, call.parameter("bias"), size, 0.0)
    mean, var = call.parameter("running_mean"), call.parameter("running_var")
    return call.add("BatchNormalization", call.x(), weight, bias, mean, var, epsilon=norm.eps)  # type: ignore[arg-type]


@writes("batch_norm")
def batch_norm(call: OpCall) -> str:
    if call.plain(call.arg(5, "training", default=False), "training"):
        raise call.refusal("normalises by the statistics of each batch; give it training=False")
    mean, var = call.x(1, "running_mean"), call.x(2, "running_var")
    size = call.given_facts(1, "running_mean").shape[0]
    weight = or_constant(call, call.maybe(3, "weight"), size, 1.0)  # type: ignore[arg-type]
    bias = or_constant(call, call.maybe(4, "bias"), size, 0.0)  # type: ignore[arg-type]
    epsilon = call.setting("eps", 7, 1e-5)
    return call.add("BatchNormalization", call.x(), weight, bias, mean, var, epsilon=epsilon)


@writes("instance_norm1d", "instance_norm2d", "instance_norm3d")
def instance_norm(call: OpCall) -> str:
    norm: Any = call.module
    if norm.track_running_stats:
        raise call.refusal("has running statistics; use a batch norm, or do not track them")
    if call.rank < 3 or call.given_facts().shape[1] != norm.num_features:
        raise call.refusal("takes one sample without a batch; give it a batch")
    weight = or_constant(call, call.parameter("weight"), norm.num_features, 1.0)
    bias = or_constant(call, call.parameter("bias"), norm.num_features, 0.0)
    return call.add("InstanceNormalization", call.x(), weight, bias, epsilon=norm.eps)


def layer_normed(
    call: OpCall, x: str, shape: Any, weight: str | None, bias: str | None, eps: float
) -> str:
    """Return a layer norm over the last dimensions."""
    ones = torch.ones(tuple(shape), dtype=call.given_facts().dtype)
    gain = weight or call.constant(ones)
    return call.add(
        "LayerNormalization", x, gain, *([bias] if bias else []), axis=-len(shape), epsilon=eps
    )


@writes("layer_norm")
def layer_norm(call: OpCall) -> str:
    weight, bias = call.weight("weight", 2), call.weight("bias", 3)
    shape = call.setting("normalized_shape", 1)
    return layer_normed(call, call.x(), shape, weight, bias, call.setting("eps", 4, 1e-5))


@writes("rms_norm")
def rms_norm(call: OpCall) -> str:
    x, shape = call.x(), call.setting("normalized_shape", 1)
    weight, eps = call.weight("weight", 2), call.setting("eps", 3, None)
    dtype = call.given_facts().dtype
    eps = torch.finfo(dtype).eps if eps is None else eps
    axes = call.ints(*range(-len(shape), 0))
    mean = call.add("ReduceMean", call.add("Mul", x, x), axes, keepdims=1)
    root = call.add("Sqrt", call.add("Add", mean, call.constant(eps, dtype)))
    normed = call.add("Div", x, root)
    return call.add("Mul", normed, weight) if weight else normed


@writes("group_norm")
def group_norm(call: OpCall) -> str:
    channels = call.given_facts().shape[1]
    assert channels is not None
    weight = or_constant(call, call.weight("weight", 2), channels, 1.0)
    bias = or_constant(call, call.weight("bias", 3), channels, 0.0)
    groups, eps = call.setting("num_groups", 1), call.setting("eps", 4, 1e-5)
    return call.add("GroupNormalization", call.x(), weight, bias, num_groups=groups, epsilon=eps)


@writes("local_response_norm")
def local_response_norm(call: OpCall) -> str:
    size = call.setting("size", 1)
    if size % 2 == 0:
        raise call.refusal("has a window of an even size, which ONNX places elsewhere; use odd")
    alpha, beta = call.setting("alpha", 2, 1e-4), call.setting("beta", 3, 0.75)
    x, is_image = call.x(), call.rank == 4  # kernels are for images only
    x = x if is_image else call.add("Reshape", x, call.ints(0, 0, -1, 1))
    k = call.setting("k", 4, 1.0)
    result = call.add("LRN", x, size=size, alpha=alpha, beta=beta, bias=k)
    return result if is_image else call.reshape(result)


@writes("normalize")
def normalize(call: OpCall) -> str:
    p, dim = call.setting("p", 1, 2.0), call.setting("dim", 2, 1)
    eps, x = call.setting("eps", 3, 1e-12), call.x()
    if p not in (1, 2, math.inf):
        raise call.refusal(f"divides by the norm of order {p}; use 1 or 2")
    norm = reduced_norm(call, x, p, call.ints(dim), True)
    return call.add("Div", x, call.add("Max", norm, call.constant(eps)))


def reduced_norm(call: OpCall, x: str, p: float, axes: str, keep: bool) -> str:
    """Return the norm of order 1, 2 or infinity."""
    if p == math.inf:
        return call.add("ReduceMax", call.add("Abs", x), axes, keepdims=int(keep))
    return call.add("ReduceL1" if p == 1 else "ReduceL2", x, axes, keepdims=int(keep))
