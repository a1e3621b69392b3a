"""Shapes: reshape, transpose, squeeze, expand, and the shapes themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OnnxNode, reads
from chop.onnx.reading.tensors import TYPES, kind_of_type, torch_type, type_name
from chop.onnx.reading.values import OnnxValue, Size, known


def known_numbers(node: OnnxNode, place: int, what: str) -> list[Size]:
    """Return integers that are constants, or made of sizes: one for each trial."""
    value = node[place]
    if not value.is_known:
        raise node.wrong(f"computes its {what} from the data; only constants and sizes can be read")
    pair = [node.listed(sample, what) for sample in value.samples]
    return [(int(a), int(b)) for a, b in zip(*pair, strict=True)]


@reads("Reshape", commutes=True)
def reshape(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a reshape: 0 copies a size, and -1 is what is left."""
    if len(node.inputs) > 1:
        wanted = known_numbers(node, 1, "shape")
    else:
        wanted = [(size, size) for size in node.attribute("shape", [])]
    x = node[0]
    if not node.attribute("allowzero", 0):
        wanted = [
            x.sizes[place] if size == (0, 0) and place < x.rank else size
            for place, size in enumerate(wanted)
        ]
    wanted = with_free_batch(reader, x, wanted)
    return reader.reshaped(x, _without_minus_one(node, x, wanted))


def with_free_batch(reader: Reader, x: OnnxValue, wanted: list[Size]) -> list[Size]:
    """Return a shape with the free batch in place of the one that the file was exported for."""
    fixed = reader.fixed_batch
    if fixed is None or x.is_known:
        return wanted
    return [
        x.sizes[place] if size == (fixed, fixed) and _is_free(x, place) else size
        for place, size in enumerate(wanted)
    ]


def _is_free(x: OnnxValue, place: int) -> bool:
    return place < x.rank and x.sizes[place][0] != x.sizes[place][1]


def _without_minus_one(node: OnnxNode, x: OnnxValue, wanted: Sequence[Size]) -> list[Size]:
    places = [place for place, size in enumerate(wanted) if -1 in size]
    if len(places) > 1 or any(n < -1 for size in wanted for n in size):
        raise node.wrong("has a shape with several -1 or negative sizes; export it again")
    result = list(wanted)
    for trial in (0, 1):
        count = math.prod(size[trial] for size in x.sizes)
        others = math.prod(size[trial] for size in wanted if -1 not in size)
        rest, odd = divmod(count, others) if others else (0, count)
        if odd or (not places and rest != 1 and count):
            shape = [size[trial] for size in wanted]
            raise node.wrong(
                f"reshapes {[size[trial] for size in x.sizes]} to {shape}, which has another "
                f"number of elements; export the network again"
            )
        for place in places:
            pair = list(result[place])
            pair[trial] = rest
            result[place] = (pair[0], pair[1])
    return result


@reads("Flatten", commutes=True)
def flatten(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a reshape to two dimensions, split at an axis."""
    x, axis = node[0], node.attribute("axis", 1)
    axis = axis if axis == x.rank else node.axis(1)
    parts = [x.sizes[:axis], x.sizes[axis:]]
    sizes = [(math.prod(s[0] for s in part), math.prod(s[1] for s in part)) for part in parts]
    return reader.reshaped(x, sizes)


@reads("Transpose", commutes=True)
def transpose(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a permutation; two that undo each other are left out."""
    x = node[0]
    order = node.attribute("perm") or list(range(x.rank))[::-1]
    if sorted(order) != list(range(x.rank)):
        raise node.wrong(f"has the order {order} for {x.rank} dimensions; export it again")
    return permuted(reader, x, order)


def permuted(reader: Reader, x: OnnxValue, order: Sequence[int]) -> OnnxValue:
    """Return a value with its dimensions in another order."""
    if list(order) == list(range(x.rank)):
        return x
    node = x.node
    if node is not None and node.op == "call_function" and node.target is torch.permute:
        before, former = node.args
        if [former[place] for place in order] == list(range(x.rank)):  # type: ignore[index]
            samples = tuple(t.permute(list(order)) for t in x.samples)
            return OnnxValue((samples[0], samples[1]), before)  # type: ignore[arg-type]
    return reader.call(torch.permute, x, tuple(order))  # type: ignore[no-any-return]


def _axes(node: OnnxNode, rank: int) -> list[int]:
    """Return axes, which are attributes before opset 13, and an input since."""
    axes = node.numbers(1, "axes") or node.attribute("axes") or []
    return sorted(node.axis(axis=axis, rank=rank) for axis in axes)


@reads("Squeeze", commutes=True)
def squeeze(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read the removal of dimensions of size 1."""
    x = node[0]
    axes = _axes(node, x.rank) or [d for d, size in enumerate(x.sizes) if size == (1, 1)]
    if any(x.sizes[axis] != (1, 1) for axis in axes):
        raise node.wrong("removes a dimension whose size is not 1; export the network again")
    for axis in reversed(axes):
        x = reader.call(torch.squeeze, x, axis)
    return x


@reads("Unsqueeze", commutes=True)
def unsqueeze(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read the addition of dimensions of size 1."""
    x = node[0]
    count = len(node.numbers(1, "axes") or node.attribute("axes") or [])
    for axis in _axes(node, x.rank + count):
        x = reader.call(torch.unsqueeze, x, axis)
    return x


@reads("Expand", commutes=True)
def expand(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a repetition of dimensions of size 1."""
    x, wanted = node[0], known_numbers(node, 1, "shape")
    rank = max(x.rank, len(wanted))
    have = [(1, 1)] * (rank - x.rank) + x.sizes
    wanted = [(1, 1)] * (rank - len(wanted)) + wanted
    wanted = with_free_batch(reader, x, wanted) if x.rank == rank else wanted
    sizes = []
    for old, new in zip(have, wanted, strict=True):
        if 1 not in (*old, *new) and old != new:
            raise node.wrong(f"expands a size of {old[0]} to {new[0]}; export the network again")
        sizes.append(new if old == (1, 1) else old)
    if sizes == x.sizes:
        return x
    if x.is_known:
        pair = [t.expand(s) for t, s in zip(x.samples, zip(*sizes, strict=True), strict=True)]
        return OnnxValue((pair[0], pair[1]))
    kept = rank - x.rank
    shape = [
        -1 if place >= kept and size == have[place] else reader.shape([size])[0]
        for place, size in enumerate(sizes)
    ]
    return reader.method("expand", x, *shape)  # type: ignore[no-any-return]


@reads("Tile")
def tile(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a repetition of the whole tensor."""
    times = node.numbers(1, "repeats") or []
    return reader.call(torch.tile, node[0], tuple(int(n) for n in times))  # type: ignore[no-any-return]


@reads("Shape")
def shape(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read the sizes of a tensor as known numbers, which may differ by trial."""
    pair = []
    for sample in node[0].samples:
        sizes = list(sample.shape)
        end = node.attribute("end", len(sizes))
        pair.append(torch.tensor(sizes[node.attribute("start", 0) : end], dtype=torch.int64))
    return _sizes(pair)


@reads("Size")
def size(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read the number of elements."""
    return _sizes([torch.tensor(sample.numel()) for sample in node[0].samples])


def _sizes(pair: list[torch.Tensor]) -> OnnxValue:
    same = torch.equal(*pair)
    return known(pair[0]) if same else OnnxValue((pair[0], pair[1]))


@reads("Constant")
def constant(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a constant."""
    value = node.attribute("value")
    if isinstance(value, OnnxValue):
        return known(value.tensor, node.outputs[0], value.kind)
    for name, dtype in (("value_float", torch.float32), ("value_int", torch.int64)):
        for key in (name, f"{name}s"):
            if node.has(key):
                return known(torch.tensor(node.attribute(key), dtype=dtype), node.outputs[0])
    raise node.wrong("holds text or a sparse tensor, which cannot be read")


@reads("ConstantOfShape")
def constant_of_shape(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a tensor of equal numbers."""
    fill = node.attribute("value")
    number = fill.tensor.reshape(-1)[0] if isinstance(fill, OnnxValue) else torch.tensor(0.0)
    sizes = known_numbers(node, 0, "shape")
    if any(n < 0 for size in sizes for n in size):
        raise node.wrong("has a negative size; export the network again")
    # one number is stored, however large the shape is
    pair = [number.expand([size[trial] for size in sizes]) for trial in (0, 1)]
    same = pair[0].shape == pair[1].shape
    return OnnxValue((pair[0], pair[0] if same else pair[1]))


@reads("Range")
def arange(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read the numbers from a start to a limit."""
    parts = [node[place] for place in range(3)]
    if not all(part.is_known for part in parts):
        raise node.wrong("has limits that are computed from the data, which cannot be read")
    pair = []
    for trial in (0, 1):
        start, limit, step = (part.samples[trial].item() for part in parts)
        if step == 0 or abs((limit - start) / step) > 2**24:
            raise node.wrong(f"goes from {start} to {limit} in steps of {step}; export it again")
        pair.append(torch.arange(start, limit, step, dtype=parts[0].dtype))
    return _sizes(pair)


@reads("Cast")
def cast(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a change of the type."""
    kind = node.attribute("to", 0)
    torch_type(kind, node.label)
    return in_kind(reader, node[0], type_name(kind))


@reads("CastLike")
def cast_like(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a change to the type of another tensor."""
    return in_kind(reader, node[0], node[1].kind or kind_of_type(node[1].dtype))


def in_kind(reader: Reader, x: OnnxValue, kind: str) -> OnnxValue:
    """Return a value in a type of the file; integers that torch has no type for wrap."""
    dtype, bits = TYPES[kind]
    width = dtype.itemsize * 8
    is_wrapped = not dtype.is_floating_point and dtype != torch.bool and bits < width
    if not is_wrapped or x.kind == kind:
        return replace(in_type(reader, x, dtype), kind=kind)
    wide = in_type(reader, x, torch.int64)
    low = -(2 ** (bits - 1)) if kind.startswith("INT") else 0
    wide = wide if low == 0 else reader.call(torch.sub, wide, low)
    wide = reader.call(torch.bitwise_and, wide, 2**bits - 1)
    wide = wide if low == 0 else reader.call(torch.add, wide, low)
    return replace(in_type(reader, wide, dtype), kind=kind)


def in_type(reader: Reader, x: OnnxValue, dtype: torch.dtype) -> OnnxValue:
    """Return a value in a type; torch adds int32 in int64, and raises integers in float."""
    return x if x.dtype == dtype else reader.method("to", x, dtype)
