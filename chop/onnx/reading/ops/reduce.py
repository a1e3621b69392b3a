"""Reductions: sums, means, extremes, and where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from chop.onnx.reading.ops.shape import in_type
from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OnnxNode, reads
from chop.onnx.reading.values import OnnxValue

Step = Callable[[Reader, OnnxValue], OnnxValue]


def _square(reader: Reader, x: OnnxValue) -> OnnxValue:
    return reader.call(torch.mul, x, x)  # type: ignore[no-any-return]


def _step(function: Callable[..., Any]) -> Step:
    return lambda reader, x: reader.call(function, x)


# operator -> what goes before, the reduction, and what goes after
REDUCTIONS: dict[str, tuple[Step | None, Callable[..., Any], Step | None]] = {
    "ReduceSum": (None, torch.sum, None),
    "ReduceMean": (None, torch.mean, None),
    "ReduceMax": (None, torch.amax, None),
    "ReduceMin": (None, torch.amin, None),
    "ReduceL1": (_step(torch.abs), torch.sum, None),
    "ReduceL2": (_square, torch.sum, _step(torch.sqrt)),
    "ReduceSumSquare": (_square, torch.sum, None),
    "ReduceLogSum": (None, torch.sum, _step(torch.log)),
    "ReduceLogSumExp": (None, torch.logsumexp, None),
    "ReduceProd": (None, torch.prod, None),
}


@reads(*REDUCTIONS)
def reduced(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a reduction over axes, which are attributes or an input by opset."""
    before, function, after = REDUCTIONS[node.op]
    keep, x = bool(node.attribute("keepdims", 1)), node[0]
    axes = node.numbers(1, "axes") or node.attribute("axes")
    dims = sorted(node.axis(axis=axis) for axis in axes) if axes else list(range(x.rank))
    if not axes and node.attribute("noop_with_empty_axes", 0):
        dims = []
    x = x if before is None else before(reader, x)
    if function is torch.prod:
        for dim in reversed(dims):
            x = reader.call(torch.prod, x, dim, keep)
    elif dims:
        x = reader.call(function, x, dims, keep)
    return in_type(reader, x if after is None else after(reader, x), node[0].dtype)


@reads("ArgMax", "ArgMin")
def argument(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read the place of the largest or smallest number."""
    if node.attribute("select_last_index", 0):
        raise node.wrong("selects the last of equal numbers, which cannot be read")
    function = torch.argmax if node.op == "ArgMax" else torch.argmin
    axis = node.axis(0)
    return reader.call(function, node[0], axis, bool(node.attribute("keepdims", 1)))  # type: ignore[no-any-return]


@reads("TopK")
def top_k(reader: Reader, node: OnnxNode) -> list[OnnxValue]:
    """Read the largest numbers and their places."""
    count = (node.numbers(1, "number") or [node.attribute("k", 1)])[0]
    axis, largest = node.axis(), bool(node.attribute("largest", 1))
    ordered = bool(node.attribute("sorted", 1))
    found = reader.call(torch.topk, node[0], int(count), axis, largest, ordered)
    return [found[place] for place, name in enumerate(node.outputs) if place < 2]
