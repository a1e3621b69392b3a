"""Shapes: views, transposes, parts and joins."""

from __future__ import annotations

from typing import Any

from chop.passes.graph.interface.export_onnx.call import OpCall
from chop.passes.graph.interface.export_onnx.registry import writes
from chop.passes.graph.interface.export_onnx.values import OnnxSize, OnnxTensor

MOST = 2**63 - 1


@writes("flatten", "unflatten", "ravel", "view_as", "reshape_as", "squeeze")
def reshape_by_facts(call: OpCall) -> str:
    x, wanted = call.x(), call.out.shape
    unknown = sum(size is None for size in wanted)
    if unknown <= 1:
        return x if wanted == call.given_facts().shape else call.reshape(x)
    if call.op == "squeeze":
        have = call.given_facts().shape
        dims = call.setting("dim", 1, None)
        dims = [i for i, n in enumerate(have) if n == 1] if dims is None else dims
        dims = [dims] if isinstance(dims, int) else dims
        return call.add("Squeeze", x, call.ints(*(d % len(have) for d in dims if have[d] == 1)))
    if call.op in ("view_as", "reshape_as"):
        return call.add("Reshape", x, call.add("Shape", call.x(1, "other")))
    return _partly(call, x)


def _partly(call: OpCall, x: str) -> str:
    """Return a value in which the first sizes stay, and at most one of the others is unknown."""
    have, wanted = call.given_facts().shape, call.out.shape
    same = 0
    while same < min(len(have), len(wanted)) and have[same] == wanted[same]:
        same += 1
    rest = wanted[same:]
    if sum(size is None for size in rest) > 1:
        raise call.refusal("has a shape in which several sizes depend on the batch; use view")
    sizes = [0 if n is None else n for n in wanted[:same]] + [-1 if n is None else n for n in rest]
    return call.add("Reshape", x, call.ints(*sizes))


@writes("view", "reshape")
def reshape(call: OpCall) -> str:
    x = call.x()
    if sum(size is None for size in call.out.shape) <= 1:
        return call.reshape(x)
    sizes = call.many(1, "shape", "size")
    known = [n if n is not None else size for n, size in zip(call.out.shape, sizes, strict=True)]
    return call.add("Reshape", x, call.sizes(known))


@writes("unsqueeze")
def unsqueeze(call: OpCall) -> str:
    dim = call.setting("dim", 1)
    return call.add("Unsqueeze", call.x(), call.ints(dim % (call.rank + 1)))


@writes("transpose", "swapdims", "swapaxes", "t", "adjoint")
def transpose(call: OpCall) -> str:
    rank = call.rank
    if call.op == "t":
        first, second = (0, 1) if rank == 2 else (0, 0)
    elif not rank:
        return call.x()
    elif call.op == "adjoint":
        first, second = rank - 2, rank - 1
    else:
        first, second = (
            call.plain(call.arg(place, *names), "dim") % rank
            for place, names in ((1, ("dim0", "axis0")), (2, ("dim1", "axis1")))
        )
    if first == second:
        return call.x()
    order = [*range(rank)]
    order[first], order[second] = second, first
    return call.add("Transpose", call.x(), perm=order)


@writes("permute")
def permute(call: OpCall) -> str:
    dims = [dim % call.rank for dim in call.many(1, "dims")]
    return call.add("Transpose", call.x(), perm=dims) if dims else call.x()


@writes("movedim")
def movedim(call: OpCall) -> str:
    rank = call.rank
    if not rank:
        return call.x()
    source, target = (call.plain(call.arg(p, n), n) for p, n in ((1, "source"), (2, "destination")))
    sources, targets = ([v] if isinstance(v, int) else [*v] for v in (source, target))
    moved = dict(zip((t % rank for t in targets), (s % rank for s in sources), strict=True))
    rest = iter(d for d in range(rank) if d not in moved.values())
    order = [moved[d] if d in moved else next(rest) for d in range(rank)]
    return call.add("Transpose", call.x(), perm=order)


@writes("expand", "broadcast_to")
def expand(call: OpCall) -> str:
    sizes = call.many(1, "size", "shape")
    wanted = [1 if isinstance(n, int) and n == -1 else n for n in sizes]
    return call.add("Expand", call.x(), call.sizes(wanted))


@writes("expand_as")
def expand_as(call: OpCall) -> str:
    return call.add("Expand", call.x(), call.add("Shape", call.x(1, "other")))


@writes("repeat", "tile")
def repeat(call: OpCall) -> str:
    counts, x = call.many(1, "repeats", "dims"), call.x()
    rank = call.rank
    if len(counts) < rank:
        counts = [1] * (rank - len(counts)) + counts
    if len(counts) > rank:
        x = call.add("Unsqueeze", x, call.ints(*range(len(counts) - rank)))
    return call.add("Tile", x, call.sizes(counts))


@writes("cat", "concat")
def cat(call: OpCall) -> str:
    values = call.arg(0, "tensors")
    dim = call.plain(call.arg(1, "dim", "axis", default=0), "dim")
    names = [
        call.cast(call.value(value), call.facts_of(value).dtype, call.out.dtype)
        for value in values
        if call.facts_of(value).shape != (0,)
    ]
    return call.add("Concat", *names, axis=dim)


@writes("stack", "hstack", "vstack")
def stack(call: OpCall) -> str:
    values = call.arg(0, "tensors")
    names = [call.cast(call.value(v), call.facts_of(v).dtype, call.out.dtype) for v in values]
    ranks = len(call.facts_of(values[0]).shape)
    if call.op == "hstack":
        return call.add("Concat", *names, axis=0 if ranks == 1 else 1)
    dim = 0 if call.op == "vstack" else call.plain(call.arg(1, "dim", default=0), "dim")
    if call.op == "vstack" and ranks > 1:
        return call.add("Concat", *names, axis=0)
    raised = [call.add("Unsqueeze", name, call.ints(dim)) for name in names]
    return call.add("Concat", *raised, axis=dim)


@writes("chunk", "split", "split_with_sizes", "tensor_split")
def split(call: OpCall) -> Any:
    dim = call.plain(call.arg(2, "dim", default=0), "dim")
    if call.op == "tensor_split":
        places = call.arg(
            1, "indices_or_sections", "indices", "sections", "tensor_indices_or_sections"
        )
        call.plain(places, "place to split at")
    sizes = [facts.shape[dim] for facts in call.facts]
    if len(sizes) == 1:
        return (call.x(),)
    if None in sizes:
        raise call.refusal("splits the batch; split another dimension")
    parts = call.ints(*sizes)
    return tuple(call.add_many("Split", call.x(), parts, count=len(sizes), axis=dim))


@writes("unbind")
def unbind(call: OpCall) -> Any:
    dim, count = call.plain(call.arg(1, "dim", default=0), "dim"), len(call.facts)
    x = call.x()
    if count == 1:
        return (call.add("Squeeze", x, call.ints(dim)),)
    parts = call.add_many("Split", x, call.ints(*[1] * count), count=count, axis=dim)
    return tuple(call.add("Squeeze", part, call.ints(dim)) for part in parts)


def sliced(call: OpCall, x: str, dim: int, start: Any, stop: Any, step: int = 1) -> str:
    """Return a part of a dimension."""
    begin, end = (
        call.ints(value) if isinstance(value, int) else call.sizes([value])
        for value in (start, stop)
    )
    return call.add("Slice", x, begin, end, call.ints(dim), call.ints(step))


@writes("narrow")
def narrow(call: OpCall) -> str:
    dim, start, length = (call.arg(i, n) for i, n in ((1, "dim"), (2, "start"), (3, "length")))
    if not isinstance(start, int) or not isinstance(length, int):
        raise call.refusal("takes a part whose place depends on the batch; use slices")
    stop = start + length
    return sliced(call, call.x(), dim, start, MOST if start < 0 == stop else stop)


@writes("select")
def select(call: OpCall) -> str:
    dim, index = call.arg(1, "dim"), call.arg(2, "index")
    place = call.constant(index, "int64") if isinstance(index, int) else call.value(index)
    return call.add("Gather", call.x(), place, axis=dim)


@writes("slice")
def slice_part(call: OpCall) -> str:
    dim, start = call.arg(1, "dim", default=0), call.arg(2, "start", default=0) or 0
    stop, step = call.arg(3, "end", default=MOST), call.arg(4, "step", default=1)
    return sliced(call, call.x(), dim, start, MOST if stop is None else stop, step)


@writes("flip")
def flip(call: OpCall) -> str:
    x = call.x()
    for dim in call.many(1, "dims") if call.rank else ():
        x = call.add("Slice", x, call.ints(-1), call.ints(-MOST), call.ints(dim), call.ints(-1))
    return x


@writes("roll")
def roll(call: OpCall) -> str:
    shifts, dims = call.arg(1, "shifts"), call.arg(2, "dims", default=None)
    if dims is None or dims == ():
        raise call.refusal("rolls the flattened tensor; name the dimensions")
    pairs = [(shifts, dims)] if isinstance(dims, int) else list(zip(shifts, dims, strict=True))
    x = call.x()
    for shift, dim in pairs:
        size = call.given_facts().shape[dim]
        if size is None or not isinstance(shift, int):
            raise call.refusal("rolls the batch, or by a computed number; use a fixed size")
        if size and shift % size:
            last = sliced(call, x, dim, -(shift % size), MOST)
            x = call.add("Concat", last, sliced(call, x, dim, 0, -(shift % size)), axis=dim)
    return x


@writes("getattr", "size", "shape")
def size(call: OpCall) -> Any:
    """Return the sizes of a tensor: those that are fixed as numbers."""
    value = call.arg(0)
    if call.op == "getattr" and call.arg(1) != "shape":
        return _attribute(call, call.arg(1))
    sizes = call.facts_of(value).shape
    dim = call.arg(1, "dim", default=None) if call.op == "size" else None
    dims = range(len(sizes)) if dim is None else [dim]
    shape = call.add("Shape", call.value(value))
    found = [
        OnnxSize(call.add("Gather", shape, call.constant(d % len(sizes), "int64"), axis=0))
        if sizes[d] is None
        else sizes[d]
        for d in dims
    ]
    return tuple(found) if dim is None else found[0]


def _attribute(call: OpCall, name: str) -> str:
    """Return an attribute of a tensor that is a tensor itself."""
    order = [*range(call.rank)]
    if name in ("T", "mT"):
        ends = order[::-1] if name == "T" else [*order[:-2], order[-1], order[-2]]
        return call.add("Transpose", call.x(), perm=ends)
    if name in ("data", "real"):
        return call.x()
    raise call.refusal(f"reads {name!r}, which a file does not hold")


@writes("numel")
def numel(call: OpCall) -> str:
    return call.add("Size", call.x())


@writes("length")
def length(call: OpCall) -> Any:
    value = call.arg(0)
    if not isinstance(value, OnnxTensor):
        return len(value)
    shape = call.add("Shape", value.name)
    return OnnxSize(call.add("Gather", shape, call.constant(0, "int64"), axis=0))


@writes("tril", "triu")
def triangle(call: OpCall) -> str:
    k = call.constant(call.setting("diagonal", 1, 0), "int64")
    return call.add("Trilu", call.x(), k, upper=int(call.op == "triu"))
