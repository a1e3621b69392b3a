"""Reductions: sums, means, extremes, and where they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from chop.onnx.reading.errors import GIVE_SIZE
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
EMPTY = (torch.amax, torch.amin)  # which torch does not compute of no numbers


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
    elif dims and function in EMPTY and _is_empty(x, dims):
        x = _of_nothing(node, x, dims, keep=keep)
    elif dims:
        x = reader.call(function, x, dims, keep)
    return in_type(reader, x if after is None else after(reader, x), node[0].dtype)


def _is_empty(x: OnnxValue, dims: Sequence[int]) -> bool:
    return any(x.sizes[dim] == (0, 0) for dim in dims)


def _of_nothing(node: OnnxNode, x: OnnxValue, dims: Sequence[int], *, keep: bool) -> OnnxValue:
    """Return the largest or smallest of no numbers: the lowest or the highest that the type has."""
    sizes = [
        (1, 1) if d in dims else size for d, size in enumerate(x.sizes) if keep or d not in dims
    ]
    ends: tuple[float, float] = (-math.inf, math.inf)
    if x.dtype == torch.bool:
        ends = (False, True)
    elif not x.dtype.is_floating_point:
        ends = (torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max)
    fill = ends[node.op == "ReduceMin"]
    one = torch.tensor(fill, dtype=x.dtype)
    pair = [one.expand([size[i] for size in sizes]) for i in (0, 1)]
    return OnnxValue((pair[0], pair[0] if pair[0].shape == pair[1].shape else pair[1]))


@reads("ArgMax", "ArgMin")
def argument(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read the place of the first, or the last, of the largest or smallest numbers."""
    function = torch.argmax if node.op == "ArgMax" else torch.argmin
    axis, keep = node.axis(0), bool(node.attribute("keepdims", 1))
    if not node.attribute("select_last_index", 0):
        return reader.call(function, node[0], axis, keep)  # type: ignore[no-any-return]
    first, second = node[0].sizes[axis]
    if first != second:
        raise node.wrong(f"selects the last place along a size that is free; {GIVE_SIZE}")
    turned = reader.call(torch.flip, node[0], (axis,))
    places = reader.call(function, turned, axis, keep)
    return reader.call(torch.rsub, places, first - 1)  # type: ignore[no-any-return]


@reads("TopK")
def top_k(reader: Reader, node: OnnxNode) -> list[OnnxValue]:
    """Read the largest numbers and their places; of equal numbers, the first places count."""
    count = int((node.numbers(1, "number") or [node.attribute("k", 1)])[0])
    axis, largest = node.axis(), bool(node.attribute("largest", 1))
    if not 0 <= count <= min(node[0].sizes[axis]):
        raise node.wrong(f"selects {count} of {min(node[0].sizes[axis])} numbers; export it again")
    # torch.topk gives any of the places of equal numbers
    found = reader.call(torch.sort, node[0], stable=True, dim=axis, descending=largest)
    return [
        reader.call(torch.narrow, found[place], axis, 0, count)
        for place in range(min(2, len(node.outputs)))
    ]
