"""Parts of tensors: slices, splits, look-ups, joins and padding."""

from __future__ import annotations

import operator as python
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from chop.onnx.reading.errors import GIVE_SIZE
from chop.onnx.reading.ops.shape import in_type, known_numbers
from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OnnxNode, reads
from chop.onnx.reading.values import OnnxValue, Size, is_constant, known

FAR = 2**31 - 1  # exporters write this or more for the end of a dimension
MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@reads("Concat", takes_grids=True)
def concat(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a join along an axis; a grid that all parts have stays."""
    parts = [node[place] for place in range(len(node.inputs))]
    grids = {part.grid for part in parts}
    grid = parts[0].grid if len(grids) == 1 and not any(part.is_codes for part in parts) else None
    kept = grid is not None and grid.axis is None
    parts = [part.with_grid(None) if kept else reader.settled(part) for part in parts]
    result: OnnxValue = reader.call(torch.cat, parts, node.axis(0))
    return result.with_grid(grid if kept else None)


@reads("Slice", commutes=True)
def slices(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a slice; bounds are attributes before opset 10, and inputs since."""
    x = node[0]
    starts, ends = (_bounds(node, place, name) for place, name in ((1, "starts"), (2, "ends")))
    axes = node.numbers(3, "axes") or node.attribute("axes") or list(range(len(starts)))
    steps = node.numbers(4, "steps") or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.wrong("has bounds of different lengths; export the network again")
    places: list[slice] = [slice(None)] * x.rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = node.axis(axis=axis)
        if step == 0:
            raise node.wrong("has a step of 0; export the network again")
        if step < 0:
            x, start, end, step = _turned(reader, node, x, axis, start, end, int(step))
        places[axis] = _slice(node, x.sizes[axis], start, end, int(step))
    if x.is_known:
        pair = [sample[tuple(places)] for sample in x.samples]
        return OnnxValue((pair[0], pair[0] if x.samples[0] is x.samples[1] else pair[1]))
    if all(place == slice(None) for place in places):
        return x
    return reader.call(python.getitem, x, tuple(places))  # type: ignore[no-any-return]


def _bounds(node: OnnxNode, place: int, name: str) -> list[Size]:
    if node.has(name):
        return [(n, n) for n in node.attribute(name)]
    return known_numbers(node, place, name)


def _slice(node: OnnxNode, size: Size, start: Size, end: Size, step: int) -> slice:
    """Return a slice for any size: bounds at the ends of a dimension are left out."""
    first, last = _place(node, size, start), _place(node, size, end)
    if first is None:
        if size[0] != size[1]:
            raise node.wrong(f"starts beyond the end of a size that is free; {GIVE_SIZE}")
        first = size[0]
    return slice(first or None, last, step if step != 1 else None)


def _place(node: OnnxNode, size: Size, bound: Size) -> int | None:
    """Return a bound as a number; None if it lies at or beyond the end for all sizes."""
    is_free, is_fixed_bound = size[0] != size[1], bound[0] == bound[1]
    if is_free and is_fixed_bound and abs(bound[0]) < FAR:
        return bound[0]
    if all(b >= s for b, s in zip(bound, size, strict=True)):
        return None
    if is_fixed_bound:
        return max(bound[0], -max(size)) if bound[0] < 0 else bound[0]
    from_end = [b - s for b, s in zip(bound, size, strict=True)]
    if from_end[0] == from_end[1] < 0:
        return from_end[0]
    raise node.wrong("has bounds that depend on sizes in a way that cannot be read")


def _turned(
    reader: Reader, node: OnnxNode, x: OnnxValue, axis: int, start: Size, end: Size, step: int
) -> tuple[OnnxValue, Size, Size, int]:
    """Return the reversed dimension, and the bounds in it."""
    sizes = x.sizes[axis]
    is_whole = start[0] in (-1, max(start[0], FAR)) and max(end) <= -FAR
    if sizes[0] != sizes[1] and not is_whole:
        raise node.wrong(f"goes back over a part of a size that is free; {GIVE_SIZE}")
    bounds = []
    for bound in (start, end):
        pair = [
            s - 1 - min(max(b + s if b < 0 else b, -1), s - 1) if b >= -s else s
            for b, s in zip(bound, sizes, strict=True)
        ]
        bounds.append((pair[0], pair[1]))
    return reader.call(torch.flip, x, (axis,)), bounds[0], bounds[1], -step


@reads("Split", commutes=True)
def split(reader: Reader, node: OnnxNode) -> list[OnnxValue]:
    """Read a split into parts of given or equal sizes."""
    axis = node.axis(0)
    sizes = node.numbers(1, "sizes") or node.attribute("split")
    count = node.attribute("num_outputs", len(node.outputs))
    if sizes is None:
        whole, other = node[0].sizes[axis]
        if whole != other:
            raise node.wrong(f"splits a dimension whose size is free; {GIVE_SIZE}")
        each = -(-whole // max(1, count))
        sizes = [min(each, whole - each * i) for i in range(count)]
    parts = reader.call(torch.split, node[0], [int(size) for size in sizes], axis)
    return [parts[place] for place in range(len(sizes))]


@reads("Gather", takes_grids=True)
def gather(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a look-up along an axis: in a constant matrix, it is an embedding."""
    table, places = node[0], node[1]
    axis = node.axis(0)
    is_matrix = is_constant(table) and table.rank == 2 and table.dtype.is_floating_point
    if is_matrix and axis == 0 and not places.is_known:
        rows, columns = table.tensor.shape
        layer = nn.Embedding(rows, columns, device="meta")
        return reader.layer(layer, places, weights={"weight": table.tensor})  # type: ignore[no-any-return]
    grid = table.grid if table.grid is not None and table.grid.axis is None else None
    table = (
        table.with_grid(None) if grid is not None and not table.is_codes else reader.settled(table)
    )
    result = _gathered(reader, node, table, places, axis)
    return result.with_grid(grid)


def _gathered(
    reader: Reader, node: OnnxNode, table: OnnxValue, places: OnnxValue, axis: int
) -> OnnxValue:
    if table.is_known and places.is_known:
        pair = []
        for data, indices in zip(table.samples, places.samples, strict=True):
            flat = indices.reshape(-1).long()
            if flat.numel() and int(flat.abs().max()) > data.shape[axis]:
                raise node.wrong("looks up places beyond the end; export the network again")
            shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
            pair.append(data.index_select(axis, flat % data.shape[axis]).reshape(shape))
        same = table.samples[0] is table.samples[1] and places.samples[0] is places.samples[1]
        return OnnxValue((pair[0], pair[0] if same else pair[1]))
    if is_constant(places) and places.rank == 0:
        return reader.call(torch.select, table, axis, int(places.tensor))  # type: ignore[no-any-return]
    if is_constant(places) and places.rank == 1 and table.sizes[axis][0] == table.sizes[axis][1]:
        found = known(places.tensor.long() % table.tensor.shape[axis], places.name)
        return reader.call(torch.index_select, table, axis, found)  # type: ignore[no-any-return]
    where: tuple[Any, ...] = (*(slice(None),) * axis, places)
    return reader.call(python.getitem, table, where)  # type: ignore[no-any-return]


@reads("Trilu")
def triangle(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read the upper or the lower triangle of matrices."""
    diagonal = int((node.numbers(1, "diagonal") or [0])[0])
    function = torch.triu if node.attribute("upper", 1) else torch.tril
    return reader.call(function, node[0], diagonal)  # type: ignore[no-any-return]


@reads("GatherElements")
def gather_elements(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a look-up of each number by its place along an axis."""
    axis = node.axis(0)
    places = from_start(reader, node, node[1], node[0].sizes[axis])
    return reader.call(torch.gather, node[0], axis, places)  # type: ignore[no-any-return]


def from_start(reader: Reader, node: OnnxNode, places: OnnxValue, size: Size) -> OnnxValue:
    """Return places along a dimension of a size, with negative ones counted from its start."""
    places = in_type(reader, places, torch.int64)
    if is_constant(places) and not bool((places.tensor < 0).any()):
        return places
    if size[0] != size[1]:
        raise node.wrong(f"may count from the end of a size that is free; {GIVE_SIZE}")
    return reader.call(torch.remainder, places, max(1, size[0]))  # type: ignore[no-any-return]


@reads("Pad", takes_grids=True)
def pad(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read padding; pads are attributes before opset 11, and inputs since."""
    x, mode = node[0], node.attribute("mode", "constant")
    if mode not in MODES:
        raise node.wrong(f"has the mode {mode!r:.20}; only {', '.join(MODES)} can be read")
    pads = node.numbers(1, "pads") or node.attribute("pads") or []
    axes = [node.axis(axis=a) for a in node.numbers(3, "axes") or range(len(pads) // 2)]
    if len(pads) != 2 * len(axes):
        raise node.wrong("has pads that do not fit its input; export the network again")
    fill = (node.numbers(2, "value") or [node.attribute("value", 0.0)])[0]
    sides = [0] * (2 * x.rank)
    for i, axis in enumerate(axes):
        # torch counts from the last dimension
        sides[2 * (x.rank - 1 - axis)] = int(pads[i])
        sides[2 * (x.rank - 1 - axis) + 1] = int(pads[i + len(axes)])
    # torch repeats and mirrors along all dimensions behind the channels
    fewest = 2 if mode == "constant" else max(2, 2 * (x.rank - 2))
    while len(sides) > fewest and sides[-2:] == [0, 0]:
        sides = sides[:-2]
    grid = x.grid if fill == 0 and x.grid is not None and x.grid.axis is None else None
    x = x.with_grid(None) if grid is not None and not x.is_codes else reader.settled(x)
    if not any(sides):
        return x.with_grid(grid)
    more = (fill,) if mode == "constant" else ()
    result: OnnxValue = reader.call(F.pad, x, sides, MODES[mode], *more)
    return result.with_grid(grid)


@reads("DepthToSpace", commutes=True)
def depth_to_space(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a move of channels into space."""
    x, block = node[0], node.attribute("blocksize", 1)
    if node.attribute("mode", "DCR") == "CRD":
        return reader.layer(nn.PixelShuffle(block), x)  # type: ignore[no-any-return]
    n, c, h, w = _image(node, x, block * block)
    parts = reader.reshaped(x, [n, (block, block), (block, block), _over(c, block * block), h, w])
    turned = reader.call(torch.permute, parts, (0, 3, 4, 1, 5, 2))
    sizes = [n, _over(c, block * block), _times(h, block), _times(w, block)]
    return reader.reshaped(turned, sizes)


@reads("SpaceToDepth", commutes=True)
def space_to_depth(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a move of space into channels."""
    x, block = node[0], node.attribute("blocksize", 1)
    n, c, h, w = _image(node, x, 1)
    if any(size % block for size in (*h, *w)):
        raise node.wrong("has blocks that do not fit its input; export the network again")
    sizes = [n, c, _over(h, block), (block, block), _over(w, block), (block, block)]
    order = (0, 1, 3, 5, 2, 4) if node.attribute("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    turned = reader.call(torch.permute, reader.reshaped(x, sizes), order)
    return reader.reshaped(turned, [n, _times(c, block * block), _over(h, block), _over(w, block)])


def _image(node: OnnxNode, x: OnnxValue, parts: int) -> list[Size]:
    if x.rank != 4 or node.attribute("blocksize", 1) < 1 or x.sizes[1][0] % parts:
        raise node.wrong("has blocks that do not fit its input; export the network again")
    return x.sizes


def _over(size: Size, count: int) -> Size:
    return size[0] // count, size[1] // count


def _times(size: Size, count: int) -> Size:
    return size[0] * count, size[1] * count
