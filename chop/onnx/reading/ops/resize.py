"""Resizing of images."""

from __future__ import annotations

from typing import Any

from torch import nn

from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OnnxNode, reads
from chop.onnx.reading.values import OnnxValue

LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}


@reads("Resize", "Upsample")
def resize(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a resize to the nearest or the linear number, as torch computes them."""
    x = node[0]
    mode = node.attribute("mode", "nearest")
    if x.rank not in LINEAR or mode not in ("nearest", "linear", "bilinear"):
        raise node.wrong(f"has the mode {mode!r:.20}; only nearest and linear can be read")
    if node.attribute("antialias", 0) or node.has("axes"):
        raise node.wrong("has antialias or axes, which cannot be read")
    if node.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise node.wrong("keeps the ratio of the sizes, which cannot be read; give exact sizes")
    scales, sizes = _scales(node)
    way = node.attribute("coordinate_transformation_mode", _default(reader, node))
    corners: bool | None = None
    if mode == "nearest":
        whole = scales is not None and all(s == int(s) >= 1 for s in scales)
        rounding = node.attribute("nearest_mode", "round_prefer_floor")
        floor = way == "asymmetric" and rounding == "floor"
        usual = way in ("half_pixel", "pytorch_half_pixel") and "prefer" in rounding
        if node.op == "Resize" and not floor and not (whole and usual):
            raise node.wrong(f"rounds places by {rounding} in the mode {way}, which torch does not")
    else:
        ways = {"half_pixel": False, "pytorch_half_pixel": False, "align_corners": True}
        if way not in ways:
            raise node.wrong(f"has the mode {way}, which torch does not have for linear")
        to_one = any(_length(node, place, scales, sizes) == 1 for place in range(x.rank - 2))
        if way == "pytorch_half_pixel" and to_one:  # takes the first number, not the middle
            raise node.wrong("resizes to a size of 1 by pytorch_half_pixel, which torch does not")
        corners = ways[way]
        if corners and scales and not _are_whole(node, scales):
            raise node.wrong("aligns the corners of a size that is not an integer; give sizes")
    kind = "nearest" if mode == "nearest" else LINEAR[x.rank]
    factor = None if scales is None else tuple(scales)
    layer = nn.Upsample(sizes, factor, kind, corners)
    return reader.layer(layer, x)  # type: ignore[no-any-return]


def _are_whole(node: OnnxNode, scales: list[float]) -> bool:
    """Whether each size times its scale is an integer."""
    pairs = zip(node[0].sizes[2:], scales, strict=True)
    return all(s == int(s) or (a == b and a * s == int(a * s)) for (a, b), s in pairs)


def _length(node: OnnxNode, place: int, scales: list[float] | None, sizes: Any) -> int:
    """Return the size of a dimension behind the channels, after the resize."""
    return int(sizes[place]) if scales is None else int(node[0].sizes[2 + place][0] * scales[place])


def _default(reader: Reader, node: OnnxNode) -> str:
    return "half_pixel" if node.op == "Resize" and reader.opset >= 11 else "asymmetric"


def _scales(node: OnnxNode) -> tuple[list[float] | None, tuple[int, ...] | None]:
    """Return the factors or the sizes of the dimensions behind the channels."""
    later = len(node.inputs) > 2
    scales = node.numbers(2 if later else 1, "scales") or node.attribute("scales")
    sizes = node.numbers(3, "sizes")
    have = [size[0] for size in node[0].sizes]
    if sizes:
        if list(map(int, sizes[:2])) != have[:2] and int(sizes[1]) != have[1]:
            raise node.wrong("resizes the channels, which cannot be read")
        return None, tuple(int(size) for size in sizes[2:])
    if not scales or len(scales) != len(have) or scales[:2] != [1, 1] or min(scales) <= 0:
        raise node.wrong("resizes the batch or the channels, or by no factor; export it again")
    return [float(scale) for scale in scales[2:]], None
