"""Quantize and dequantize nodes: grids that values are rounded to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.numerics.grid import Rounding
from chop.onnx.reading.grids import FileGrid
from chop.onnx.reading.ops.arithmetic import LOWEST
from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import QONNX, OnnxNode, reads
from chop.onnx.reading.values import OnnxValue, known

# type of codes -> the lowest and the highest
CODES = {
    "INT2": (-2, 1), "UINT2": (0, 3), "INT4": (-8, 7), "UINT4": (0, 15), "INT8": (-128, 127),
    "UINT8": (0, 255), "INT16": (-(2**15), 2**15 - 1), "UINT16": (0, 2**16 - 1),
    "INT32": (-(2**31), 2**31 - 1),
}  # fmt: skip
ROUNDINGS: dict[str, Rounding] = {"ROUND": "even", "HALF_EVEN": "even", "FLOOR": "floor"}
# those of QONNX that go away from zero or towards it are ours for numbers that are not negative
POSITIVE_ROUNDINGS: dict[str, Rounding] = {"HALF_UP": "up", "DOWN": "floor"}
# what QONNX's modes do with constants
ROUNDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "ROUND": torch.round,
    "HALF_EVEN": torch.round,
    "FLOOR": torch.floor,
    "CEIL": torch.ceil,
    "DOWN": torch.trunc,
    "UP": lambda x: x.sign() * x.abs().ceil(),
    "HALF_UP": lambda x: x.sign() * (x.abs() + 0.5).floor(),
    "HALF_DOWN": lambda x: x.sign() * (x.abs() - 0.5).ceil(),
}
OUTPUT_TYPES = {2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 21: "UINT4", 22: "INT4"}


def _scales(node: OnnxNode) -> list[float]:
    scales = node.numbers(1, "scale") or []
    if not scales or not all(math.isfinite(s) and s > 0 for s in scales):
        raise node.wrong("has a scale that is not a positive, finite number; export it again")
    return scales


def _grid(node: OnnxNode, kind: str) -> FileGrid:
    """Return the grid of a QuantizeLinear or DequantizeLinear node."""
    scales, points = _scales(node), node.numbers(2, "zero point")
    if kind not in CODES:
        raise node.wrong(
            f"has codes of type {kind or 'unknown'}; only {', '.join(CODES)} can be read"
        )
    points = [int(p) for p in points] if points else [0] * len(scales)
    if len(points) != len(scales):
        raise node.wrong("has not as many zero points as scales; export the network again")
    axis = None
    if len(scales) > 1:
        axis = node.axis(1)
        if node[0].tensor.shape[axis] != len(scales):
            raise node.wrong(f"has {len(scales)} scales, which is not the size of its axis")
    low, high = CODES[kind]
    return FileGrid(low, high, tuple(scales), tuple(points), axis, label=node.label, name=node.name)


@reads("QuantizeLinear", takes_grids=True)
def quantize(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a rounding to codes; known numbers become codes at once."""
    if node.attribute("block_size", 0):
        raise node.wrong("has a scale per block of an activation, which no format has")
    point = node.get(2)
    kind = point.kind if point is not None else OUTPUT_TYPES.get(node.attribute("output_dtype", 2))
    grid = _grid(node, kind or "")
    x = node[0]
    if x.is_known:
        codes = _each(x, grid.encode)
        return replace(codes, kind=str(kind), grid=grid, is_codes=True)
    x, grid = _before_clip(reader, _before_bound(x), grid)
    if x.grid is not None and grid.holds(x.grid):  # rounding again changes nothing
        return x.with_grid(grid.like(x.grid), is_codes=True)
    return reader.settled(x).with_grid(grid, is_codes=True)


def _before_bound(x: OnnxValue) -> OnnxValue:
    """Return what Max with the lowest float takes, which keeps runtimes from fusing ops.

    Codes have bounds of their own.
    """
    if _is_call(x.node, torch.clamp_min) and x.node.args[1] == LOWEST:  # type: ignore[union-attr]
        return replace(x, node=x.node.args[0])  # type: ignore[union-attr, arg-type]
    return x


def _before_clip(reader: Reader, x: OnnxValue, grid: FileGrid) -> tuple[OnnxValue, FileGrid]:
    """Return what a clip to codes of fewer bits takes, and the grid of these codes.

    Codes of 9 to 15 bits are written so, as runtimes have no Clip for codes of 16 bits.
    """
    layer = reader.layer_of(x)
    if not isinstance(layer, nn.Hardtanh) or x.node in reader.formats or len(grid.scales) > 1:
        return x, grid
    # rounding keeps the order of numbers, so that the bounds may be rounded first
    steps = [bound / grid.scales[0] for bound in (layer.min_val, layer.max_val)]
    if not all(map(math.isfinite, steps)):
        return x, grid
    low, high = (round(step) + grid.zero_points[0] for step in steps)
    narrow = grid.clipped(low, high)
    if (narrow.low, narrow.high) != (low, high) or not narrow.centred().is_full:
        return x, grid
    assert x.node is not None
    (before,) = x.node.args
    return replace(x, node=before), narrow  # type: ignore[arg-type]


def _each(x: OnnxValue, function: Callable[[Tensor], Tensor]) -> OnnxValue:
    """Return a function of known numbers."""
    first = function(x.samples[0])
    second = first if x.samples[0] is x.samples[1] else function(x.samples[1])
    return OnnxValue((first, second), name=x.name)


@reads("DequantizeLinear", takes_grids=True)
def dequantize(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read codes as numbers: known ones are computed, others are a pair with QuantizeLinear."""
    x = node[0]
    if not x.is_known:
        return _pair(node, x)
    if node.attribute("block_size", 0):
        return known(_in_blocks(reader, node, x), x.name)
    kind = x.kind or "INT32"
    grid = _grid(node, kind)
    if x.grid is not None:
        grid = replace(grid, low=x.grid.low, high=x.grid.high)
    scale, point = grid.scale(x.tensor.shape, torch.float32), grid.zero_point(x.tensor.shape)
    dtype = node[1].dtype
    return _each(x, lambda t: ((t.to(torch.float32) - point) * scale).to(dtype)).with_grid(
        grid.centred()
    )


def _pair(node: OnnxNode, x: OnnxValue) -> OnnxValue:
    if not x.is_codes or x.grid is None:
        raise node.wrong(
            "has no QuantizeLinear before it; networks that compute with integers cannot be read"
        )
    wanted = FileGrid(
        x.grid.low, x.grid.high, tuple(_scales(node)),
        tuple(int(p) for p in node.numbers(2, "zero point") or ()), x.grid.axis,
    )  # fmt: skip
    if (rounded := _rounded_before(x, wanted)) is not None:
        return rounded
    if wanted != x.grid:
        raise node.wrong("has another scale or zero point than the QuantizeLinear before it")
    return x.with_grid(x.grid.centred())


def _rounded_before(x: OnnxValue, wanted: FileGrid) -> OnnxValue | None:
    """Return what is rounded down, or by ties up, before steps of 1 are quantised, and its grid.

    QuantizeLinear rounds ties to even codes; `ch export` writes other roundings so.
    """
    assert x.grid is not None
    found, grid = _rounding_of(x.node), wanted.centred()
    if found is None or x.grid != replace(wanted, scales=(1.0,)) or not grid.is_fixed_point:
        return None
    steps, rounding = found
    scale = wanted.scales[0]
    if _is_call(steps, torch.mul) and steps.args[1] == 1 / scale:
        steps = steps.args[0]  # type: ignore[assignment]
    elif scale != 1:
        return None
    grid = replace(grid, rounding=rounding, label=x.grid.label, name=x.grid.name)
    return replace(x, node=steps, is_codes=False, grid=grid)


def _rounding_of(node: fx.Node | None) -> tuple[fx.Node, Rounding] | None:
    """Return what a node rounds to integers, and how: floor(x), or round(x) and ties up."""
    if _is_call(node, torch.floor):
        return node.args[0], "floor"  # type: ignore[union-attr, return-value]
    if not _is_call(node, torch.add):
        return None
    whole, tie = node.args  # type: ignore[union-attr]
    is_cast = isinstance(tie, fx.Node) and tie.op == "call_method" and tie.target == "to"
    equal = tie.args[0] if is_cast else None  # type: ignore[union-attr]
    rest = equal.args[0] if _is_call(equal, torch.eq) and equal.args[1] == 0.5 else None  # type: ignore[union-attr]
    if not (_is_call(whole, torch.round) and _is_call(rest, torch.sub)):
        return None
    x = whole.args[0]  # type: ignore[union-attr]
    return (x, "up") if rest.args == (x, whole) else None  # type: ignore[union-attr, return-value]


def _is_call(node: Any, function: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is function


def _in_blocks(reader: Reader, node: OnnxNode, x: OnnxValue) -> Tensor:
    """Return the numbers of a constant with a scale per block; it stays in float."""
    axis, block = node.axis(1), node.attribute("block_size", 0)
    scale, point = node.constant(1, "scale"), node.constant(2, "zero point")
    assert scale is not None

    reader.count(scale.tensor.numel() * max(0, block))

    def spread(t: Tensor) -> Tensor:
        return t.repeat_interleave(block, axis).narrow(axis, 0, x.tensor.shape[axis])

    if scale.rank != x.rank or scale.tensor.shape[axis] * block < x.tensor.shape[axis]:
        raise node.wrong("has blocks that do not cover its input; export the network again")
    numbers = x.tensor.to(torch.float32)
    if point is not None:
        numbers = numbers - spread(point.tensor.to(torch.float32))
    return (numbers * spread(scale.tensor.to(torch.float32))).to(scale.dtype)


@reads("Quant", "IntQuant", domains=QONNX, takes_grids=True)
def quant(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read QONNX's rounding to any width, with constant parameters."""
    x, mode = node[0], str(node.attribute("rounding_mode", "ROUND")).upper()
    if mode not in ROUNDERS:
        raise node.wrong(f"rounds by {mode}, which QONNX does not define; use ROUND or FLOOR")
    grid = _qonnx_grid(node)
    if not x.is_known:
        grid = replace(grid, rounding=_rounding(reader, node, mode, grid))
        x = x if x.grid in (None, grid) else reader.settled(x)
        return x.with_grid(grid)
    scale, point = grid.scale(x.tensor.shape, torch.float32), grid.zero_point(x.tensor.shape)

    def numbers(t: Tensor) -> Tensor:
        codes = ROUNDERS[mode]((t / scale + point).clamp(grid.low, grid.high))
        return ((codes - point) * scale).to(t.dtype)

    return _each(x, numbers).with_grid(grid)


def _rounding(reader: Reader, node: OnnxNode, mode: str, grid: FileGrid) -> Rounding:
    """Return the rounding of ours that a mode of QONNX is for activations."""
    is_positive = not grid.signed or isinstance(reader.layer_of(node[0]), nn.ReLU)
    if mode in POSITIVE_ROUNDINGS and is_positive:
        return POSITIVE_ROUNDINGS[mode]
    if mode in POSITIVE_ROUNDINGS:
        way = {"HALF_UP": "ties away from zero", "DOWN": "towards zero"}[mode]
        raise node.wrong(
            f"rounds by {mode}, which rounds negative numbers {way}, as no format does; use ROUND "
            f"or FLOOR, or codes without a sign"
        )
    if mode not in ROUNDINGS:
        raise node.wrong(f"rounds by {mode}, which no format does; use ROUND or FLOOR")
    return ROUNDINGS[mode]


def _qonnx_grid(node: OnnxNode) -> FileGrid:
    scales, points = _scales(node), node.numbers(2, "zero point") or [0.0]
    widths = set(node.numbers(3, "bit width") or [])
    if len(widths) != 1 or not all(float(n).is_integer() for n in (*widths, *points)):
        raise node.wrong("has a bit width or zero point that is not an integer; no format has it")
    width = int(widths.pop())
    if not 1 <= width <= 32:
        raise node.wrong(f"has {width} bits; only 1 to 32 can be read")
    signed, narrow = bool(node.attribute("signed", 1)), bool(node.attribute("narrow", 0))
    high = 2 ** (width - signed) - 1 - (narrow and not signed)
    low = (-(2 ** (width - 1)) + narrow) if signed else 0
    axis, points = _axis(node, scales), [int(p) for p in points]
    points = points if len(points) == len(scales) else points * len(scales)
    if len(points) != len(scales):
        raise node.wrong("has not as many zero points as scales; export the network again")
    ends = int(low), int(high)
    return FileGrid(*ends, tuple(scales), tuple(points), axis, label=node.label, name=node.name)


def _axis(node: OnnxNode, scales: list[float]) -> int | None:
    """Return the dimension along which scales of QONNX differ."""
    if len(scales) == 1:
        return None
    shape = [1] * (node[0].rank - node[1].rank) + list(node[1].tensor.shape)
    along = [place for place, size in enumerate(shape) if size != 1]
    if len(along) != 1 or shape[along[0]] != node[0].tensor.shape[along[0]]:
        raise node.wrong("has scales along several dimensions, which no format has")
    return along[0]


@reads("BipolarQuant", domains=QONNX, takes_grids=True)
def bipolar(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read QONNX's plus or minus a scale; constants are computed."""
    (scale, *more) = _scales(node)
    if not node[0].is_known or more:
        raise node.wrong(
            "makes activations of plus and minus one, or has several scales, which no format of "
            "one operand has; use Quant with 2 bits"
        )
    x = node[0].tensor
    return known(torch.where(x >= 0, scale, -scale).to(x.dtype), node[0].name)
