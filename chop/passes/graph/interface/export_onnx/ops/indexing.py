"""Indices, gathers, and tensors that a graph makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.ops.shapes import MOST, sliced
from chop.passes.graph.interface.export_onnx.registry import writes
from chop.passes.graph.interface.export_onnx.values import OnnxSize, OnnxTensor


@writes("getitem")
def getitem(call: OpCall) -> Any:
    value, index = call.arg(0), call.arg(1)
    if not isinstance(value, OnnxTensor | Tensor):
        return value[call.plain(index, "index")]
    items = [_listed(item) for item in (index if isinstance(index, tuple) else (index,))]
    rank = len(call.facts_of(value).shape)
    taken = sum(item is not None and item is not Ellipsis for item in items)
    if Ellipsis not in [item for item in items if not isinstance(item, OnnxTensor | Tensor)]:
        items.append(Ellipsis)
    place = next(i for i, item in enumerate(items) if item is Ellipsis)
    items[place : place + 1] = [slice(None)] * (rank - taken)
    return _indexed(call, call.x(), items)


def _listed(item: Any) -> Any:
    """Return an index; a list of numbers stands for a tensor."""
    plain = isinstance(item, list) and all(isinstance(number, int) for number in item)
    return torch.tensor(item) if plain else item


def _indexed(call: OpCall, x: str, items: list[Any]) -> str:
    """Return x[items], one item after the other; an item may remove or add a dimension."""
    tensors = [item for item in items if isinstance(item, OnnxTensor | Tensor)]
    if any(call.facts_of(t).dtype == torch.bool for t in tensors):
        raise call.refusal("has a mask as its index; use where")
    if len(tensors) > 1:
        return _indexed_by_several(call, x, items)
    dim = 0
    for item in items:
        if item is None:
            x = call.add("Unsqueeze", x, call.ints(dim))
            dim += 1
        elif isinstance(item, slice):
            x = _part(call, x, dim, item)
            dim += 1
        elif isinstance(item, OnnxTensor | Tensor):
            x = call.add("Gather", x, call.value(item), axis=dim)
            dim += len(call.facts_of(item).shape)
        else:
            place = call.value(item, None, "int64")
            x = call.add("Gather", x, place, axis=dim)
    return x


def _indexed_by_several(call: OpCall, x: str, items: list[Any]) -> str:
    """Return x[items] with several tensors among the items, which are broadcast together."""
    if any(item is None for item in items):
        raise call.refusal("adds a dimension while it indexes by several tensors; use unsqueeze")
    for dim, item in reversed([*enumerate(items)]):  # torch takes single numbers first
        if not isinstance(item, slice | OnnxTensor | Tensor):
            x = call.add("Gather", x, call.value(item, None, "int64"), axis=dim)
    items = [item for item in items if isinstance(item, slice | OnnxTensor | Tensor)]
    for dim, item in enumerate(items):
        x = _part(call, x, dim, item) if isinstance(item, slice) else x
    indexed = [dim for dim, item in enumerate(items) if not isinstance(item, slice)]
    others = [dim for dim in range(len(items)) if dim not in indexed]
    names = [call.value(items[dim], None, np.int64) for dim in indexed]
    kinds = [call.facts_of(items[dim]) for dim in indexed]
    names = [call.cast(n, k.dtype, torch.int64) for n, k in zip(names, kinds, strict=True)]
    total = names[0]
    for name in names[1:]:
        total = call.add("Add", total, name)
    zeros = call.add("Mul", total, call.constant(0, np.int64))  # in the common shape
    last = call.ints(-1)
    spread = [call.add("Unsqueeze", call.add("Add", name, zeros), last) for name in names]
    turned = call.add("Transpose", x, perm=[*indexed, *others])
    found = call.add("GatherND", turned, call.add("Concat", *spread, axis=-1))
    first, rank = indexed[0], max(len(kind.shape) for kind in kinds)
    if indexed != [*range(first, first + len(indexed))] or not first:
        return found
    before = [rank + i for i in range(first)]
    after = range(rank + first, rank + len(others))
    return call.add("Transpose", found, perm=[*before, *range(rank), *after])


def _part(call: OpCall, x: str, dim: int, part: slice) -> str:
    if part == slice(None):
        return x
    start, stop = part.start or 0, MOST if part.stop is None else part.stop
    return sliced(call, x, dim, start, stop, call.plain(part.step or 1, "step"))


@writes("index_select")
def index_select(call: OpCall) -> str:
    dim = call.plain(call.arg(1, "dim"), "dim")
    found = call.add("Gather", call.vector(call.x()), call.x(2, "index"), axis=dim)
    return found if call.rank else call.reshape(found)


@writes("gather")
def gather(call: OpCall) -> str:
    dim, index = call.plain(call.arg(1, "dim"), "dim"), call.arg(2, "index")
    rank = len(call.facts_of(index).shape)
    index, x = call.vector(call.value(index), rank), call.vector(call.x())
    found = call.add("GatherElements", x, index, axis=dim)
    return found if rank and call.rank else call.reshape(found)


@writes("take_along_dim")
def take_along_dim(call: OpCall) -> str:
    """Gather, after x and the index are broadcast to each other in all other dimensions."""
    index, dim = call.arg(1, "indices"), call.plain(call.arg(2, "dim", default=None), "dim")
    have, kind = call.given_facts(), call.facts_of(index)
    names = [call.x(), call.cast(call.value(index), kind.dtype, torch.int64)]
    if dim is None:
        flat = [call.add("Reshape", name, call.ints(-1)) for name in names]
        return call.add("GatherElements", *flat, axis=0)
    dim %= call.rank
    if [*have.shape[:dim], *have.shape[dim + 1 :]] != [*kind.shape[:dim], *kind.shape[dim + 1 :]]:
        sizes = [_sizes_beside(call, name, dim) for name in names]
        names = [call.add("Expand", n, s) for n, s in zip(names, reversed(sizes), strict=True)]
    return call.add("GatherElements", *names, axis=dim)


def _sizes_beside(call: OpCall, x: str, dim: int) -> str:
    """Return the sizes of a tensor, with 1 for one of them."""
    before, after = call.add("Shape", x, end=dim), call.add("Shape", x, start=dim + 1)
    return call.add("Concat", before, call.ints(1), after, axis=0)


@writes("scatter")
def scatter(call: OpCall) -> str:
    dim, index = call.plain(call.arg(1, "dim"), "dim"), call.arg(2, "index")
    source = call.arg(3, "src", "value")
    if call.kwargs.get("reduce") is not None:
        raise call.refusal("reduces what it writes to one place; write each place once")
    if not isinstance(source, OnnxTensor | Tensor):
        raise call.refusal("writes one number to many places; give a tensor")
    names = call.x(), call.value(index), call.value(source)
    return call.add("ScatterElements", *names, axis=dim)


@writes("repeat_interleave")
def repeat_interleave(call: OpCall) -> str:
    count = call.plain(call.arg(1, "repeats"), "repeats")
    dim = call.plain(call.arg(2, "dim", default=None), "dim")
    if not isinstance(count, int) or dim is None:
        raise call.refusal("repeats by a tensor, or without dim; give a number and dim")
    rank = call.rank
    dim %= rank
    raised = call.add("Unsqueeze", call.x(), call.ints(dim + 1))
    tiled = call.add("Tile", raised, call.ints(*[1] * (dim + 1), count, *[1] * (rank - dim - 1)))
    sizes = [*call.given_facts().shape]
    kept = [0 if n is None else n for n in sizes[:dim]]
    rest = [-1 if sizes[dim] is None else sizes[dim] * count]
    if any(n is None for n in sizes[dim + 1 :]):
        raise call.refusal("repeats before a size that depends on the batch; move it last")
    return call.add("Reshape", tiled, call.ints(*kept, *rest, *sizes[dim + 1 :]))  # type: ignore[arg-type]


def filled(call: OpCall, sizes: list[Any], value: Any) -> str:
    """Return a tensor of one number."""
    number = call.constant(value, call.out.dtype)
    return call.add("Expand", number, call.sizes(sizes))


@writes("zeros", "ones", "full", "new_zeros", "new_ones", "new_full")
def made(call: OpCall) -> str:
    place = 1 if call.op.startswith("new_") else 0
    if call.op.endswith("full"):
        size = call.arg(place, "size")
        sizes = [size] if isinstance(size, int | OnnxSize) else [*size]
        return filled(call, sizes, call.plain(call.arg(place + 1, "fill_value"), "fill_value"))
    return filled(call, call.many(place, "size"), 1 if "ones" in call.op else 0)


@writes("zeros_like", "ones_like", "full_like")
def made_like(call: OpCall) -> str:
    value: Any = {"zeros_like": 0, "ones_like": 1}.get(call.op)
    if value is None:
        value = call.plain(call.arg(1, "fill_value"), "fill_value")
    number = call.constant(value, call.out.dtype)
    return call.add("Expand", number, call.add("Shape", call.x()))


@writes("arange")
def arange(call: OpCall) -> str:
    given = [*call.args] or [call.kwargs[k] for k in ("start", "end") if k in call.kwargs]
    start, end, step = {1: (0, *given, 1), 2: (*given, 1), 3: tuple(given)}[len(given)]
    names = [
        call.value(v, None, np.int64 if isinstance(v, int) else None) for v in (start, end, step)
    ]
    whole = all(isinstance(v, int | OnnxSize) for v in (start, end, step))
    if not whole:
        raise call.refusal("counts in floats up to a number that is computed; use integers")
    return call.cast(call.add("Range", *names), torch.int64, call.out.dtype)


@writes("tensor", "as_tensor", "scalar_tensor")
def tensor(call: OpCall) -> str:
    value = call.arg(0, "data")
    return call.cast(call.value(value), call.facts_of(value).dtype, call.out.dtype)
