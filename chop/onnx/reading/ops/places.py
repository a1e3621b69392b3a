"""Numbers put to places and taken from them: scatter, one-hot codes, samples of images."""

from __future__ import annotations

import operator as python
from typing import Any

import torch
import torch.nn.functional as F

from chop.onnx.reading.errors import GIVE_SIZE
from chop.onnx.reading.ops.index import from_start
from chop.onnx.reading.ops.shape import in_type
from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OnnxNode, reads
from chop.onnx.reading.tensors import torch_type
from chop.onnx.reading.values import OnnxValue, known

# what is done with the number at a place -> what torch calls it
REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
SAMPLED = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest",
           "cubic": "bicubic", "bicubic": "bicubic"}  # fmt: skip


@reads("ScatterElements", "Scatter")
def scatter_elements(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read numbers put to their places along an axis."""
    x, axis, way = node[0], node.axis(0), node.attribute("reduction", "none")
    places = from_start(reader, node, node[1], x.sizes[axis])
    if way == "none":
        return reader.call(torch.scatter, x, axis, places, node[2])  # type: ignore[no-any-return]
    if way not in REDUCTIONS:
        raise node.wrong(f"has the reduction {way!r:.20}; only {', '.join(REDUCTIONS)} are defined")
    return reader.call(torch.scatter_reduce, x, axis, places, node[2], REDUCTIONS[way])  # type: ignore[no-any-return]


def _along(reader: Reader, node: OnnxNode, places: OnnxValue) -> tuple[OnnxValue, ...]:
    """Return the places along each of the first dimensions; torch counts negative ones, too."""
    first, second = places.sizes[-1] if places.rank else (0, 1)
    if first != second or not 0 < first <= node[0].rank:
        raise node.wrong("has places of a wrong number of dimensions; export the network again")
    places = in_type(reader, places, torch.int64)
    return tuple(reader.call(torch.select, places, -1, place) for place in range(first))


@reads("ScatterND")
def scatter_nd(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read numbers put, or added, to places of several dimensions."""
    way = node.attribute("reduction", "none")
    if way not in ("none", "add"):
        raise node.wrong(f"has the reduction {way!r:.20}; only none and add can be read")
    where = _along(reader, node, node[1])
    return reader.call(torch.index_put, node[0], where, node[2], way == "add")  # type: ignore[no-any-return]


@reads("GatherND")
def gather_nd(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a look-up by places of several dimensions."""
    if node.attribute("batch_dims", 0):
        raise node.wrong("looks up places of each sample (batch_dims), which cannot be read")
    return reader.call(python.getitem, node[0], _along(reader, node, node[1]))  # type: ignore[no-any-return]


@reads("OneHot")
def one_hot(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read codes with one number on, and all others off; none is on for a place beyond the end."""
    depth, ends = int((node.numbers(1, "depth") or [0])[0]), node.constant(2, "values")
    if depth < 1 or ends is None or ends.tensor.numel() != 2:
        raise node.wrong(f"has a depth of {depth}, or not two values; export the network again")
    axis = node.axis(rank=node[0].rank + 1)
    reader.count(depth)
    shape = [depth if place == axis else 1 for place in range(node[0].rank + 1)]
    places = in_type(reader, node[0], torch.int64)
    negative = reader.call(torch.lt, places, 0)
    places = reader.call(torch.where, negative, reader.call(torch.add, places, depth), places)
    places = reader.call(torch.unsqueeze, places, axis)
    is_on = reader.call(torch.eq, places, known(torch.arange(depth).reshape(shape), "places"))
    off, on = (known(value.clone()) for value in ends.tensor.reshape(2))
    return reader.call(torch.where, is_on, on, off)  # type: ignore[no-any-return]


@reads("EyeLike")
def eye_like(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a matrix of a fixed size with ones on a diagonal."""
    if node[0].rank != 2 or any(first != second for first, second in node[0].sizes):
        raise node.wrong(f"makes a matrix of a size that is free; {GIVE_SIZE}")
    rows, columns = (first for first, _ in node[0].sizes)
    dtype = torch_type(node.attribute("dtype"), node.label) if node.has("dtype") else node[0].dtype
    reader.count(rows * columns)
    shift = node.attribute("k", 0)
    distances = torch.arange(columns) - torch.arange(rows).unsqueeze(1)
    return known((distances == shift).to(dtype), node.outputs[0])


@reads("GridSample")
def grid_sample(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read images sampled at the places of a grid."""
    mode, edges = node.attribute("mode", "linear"), node.attribute("padding_mode", "zeros")
    if mode not in SAMPLED or edges not in ("zeros", "border", "reflection"):
        raise node.wrong(f"has the mode {mode!r:.20} or {edges!r:.20}, which ONNX does not define")
    settings: dict[str, Any] = {"mode": SAMPLED[mode], "padding_mode": edges}
    settings["align_corners"] = bool(node.attribute("align_corners", 0))
    return reader.call(F.grid_sample, node[0], node[1], **settings)  # type: ignore[no-any-return]
