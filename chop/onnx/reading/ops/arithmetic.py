"""Arithmetic, comparisons and choices, number by number."""

from __future__ import annotations

import math
import operator as python
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from chop.onnx.reading.ops.shape import in_kind, in_type
from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OnnxNode, reads
from chop.onnx.reading.rounded import rounded_call, rounded_layer
from chop.onnx.reading.tensors import TYPES
from chop.onnx.reading.values import OnnxValue, is_constant
from chop.onnx.reading.weighted import fold_bias

ONE: dict[str, Callable[..., Any]] = {
    "Round": torch.round, "Not": torch.logical_not, "IsNaN": torch.isnan,
    "BitwiseNot": torch.bitwise_not,
}  # fmt: skip
TWO: dict[str, Callable[..., Any]] = {
    "Sub": torch.sub, "Pow": torch.pow, "Equal": torch.eq, "Greater": torch.gt, "Less": torch.lt,
    "GreaterOrEqual": torch.ge, "LessOrEqual": torch.le, "And": torch.logical_and,
    "Or": torch.logical_or, "Xor": torch.logical_xor, "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor,
}  # fmt: skip

LOWEST = torch.finfo(torch.float32).min


@reads(*ONE)
def of_one(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a function of one number."""
    return wrapped(reader, node, reader.call(ONE[node.op], node[0]))


@reads(*TWO)
def of_two(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a function of two numbers."""
    function = TWO[node.op]
    is_logical = function in (torch.logical_and, torch.logical_or, torch.logical_xor)
    second = node[1] if is_logical or node[0].is_known else plain(node[1])
    result: OnnxValue = reader.call(function, node[0], second)
    result = in_type(reader, result, node[0].dtype) if node.op in ("Pow", "Sub") else result
    return wrapped(reader, node, result)


def wrapped(reader: Reader, node: OnnxNode, result: OnnxValue) -> OnnxValue:
    """Return integers of the type in the file, where torch computes in a wider one."""
    kind = node[0].kind
    is_whole = kind in TYPES and result.dtype == node[0].dtype == TYPES[kind][0]
    is_narrow = is_whole and not result.dtype.is_floating_point and result.dtype != torch.bool
    return in_kind(reader, result, kind) if is_narrow else result


def plain(value: OnnxValue) -> Any:
    """Return a constant of one number as a number of Python; other values as they are."""
    if is_constant(value) and value.tensor.numel() == 1 and value.rank == 0:
        return value.tensor.item()
    return value


@reads("Add", takes_grids=True)
def add(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a sum; a constant after a layer without a bias becomes its bias."""
    folded = fold_bias(reader, node)
    return folded if folded is not None else _binary(reader, node, torch.add)


@reads("Mul", takes_grids=True)
def mul(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a product, number by number; that of x and its sigmoid is a SiLU."""
    for x, gate in ((node[0], node[1]), (node[1], node[0])):
        if isinstance(reader.layer_of(gate), nn.Sigmoid) and gate.grid is None:
            assert gate.node is not None
            grid = reader.formats.get(gate.node, {}).get("data_in")
            if gate.node.args == (x.node,) and grid == x.grid and not x.is_codes:
                return rounded_layer(reader, nn.SiLU(), x)
    return _binary(reader, node, torch.mul)


def _binary(reader: Reader, node: OnnxNode, function: Callable[..., Any]) -> OnnxValue:
    first, second = node[0], node[1]
    if first.is_known and not second.is_known:
        first, second = second, first
    if second.is_known and not first.is_known:
        result = reader.call(function, reader.settled(first), plain(second))
        return wrapped(reader, node, result)
    return wrapped(reader, node, rounded_call(reader, function, first, second))


@reads("Div")
def div(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a quotient; that of integers is rounded towards 0."""
    if node[0].dtype.is_floating_point:
        second = node[1] if node[0].is_known else plain(node[1])
        return reader.call(torch.div, node[0], second)  # type: ignore[no-any-return]
    if is_constant(node[1]) and (node[1].tensor == 0).any():
        raise node.wrong("divides integers by 0; export the network again")
    return reader.call(torch.div, node[0], node[1], rounding_mode="trunc")  # type: ignore[no-any-return]


@reads("Mod")
def mod(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a remainder, with the sign of the divisor, or of the dividend with `fmod`."""
    if is_constant(node[1]) and not node[1].dtype.is_floating_point and (node[1].tensor == 0).any():
        raise node.wrong("divides integers by 0; export the network again")
    function = torch.fmod if node.attribute("fmod", 0) else torch.remainder
    return reader.call(function, node[0], node[1])  # type: ignore[no-any-return]


@reads("Min", "Max", "Sum", "Mean")
def of_many(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read the smallest, the largest, the sum or the mean of any number of tensors."""
    functions = {"Min": torch.minimum, "Max": torch.maximum}
    function = functions.get(node.op, torch.add)
    result = node[0]
    for place in range(1, len(node.inputs)):
        if node.op != "Max" or not _is_low_bound(node[place], result):
            result = reader.call(function, result, node[place])
        elif (low := float(node[place].tensor)) > -math.inf:
            result = reader.call(torch.clamp_min, result, low)  # QuantizeLinear leaves it out
    if node.op == "Mean":
        result = reader.call(torch.div, result, len(node.inputs))
    return result


def _is_low_bound(value: OnnxValue, of: OnnxValue) -> bool:
    """Return whether a constant lies below all finite floats, as one that keeps ops apart does."""
    if not is_constant(value) or value.tensor.numel() != 1 or value.rank > of.rank:
        return False
    return of.dtype == value.dtype == torch.float32 and float(value.tensor) <= LOWEST


@reads("Where")
def where(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a choice between two tensors; that of x where it is large and its softplus is one."""
    softplus = _softplus(reader, node)
    if softplus is not None:
        return softplus
    return reader.call(torch.where, node[0], node[1], node[2])  # type: ignore[no-any-return]


def _softplus(reader: Reader, node: OnnxNode) -> OnnxValue | None:
    """Return a softplus with a threshold, as `ch export` writes torch's, or None."""
    large, x, result = (node[place].node for place in range(3))
    if large is None or x is None or result is None or large.target is not torch.gt:
        return None
    if large.args[0] is not x or not isinstance(reader.layer_of(node[2]), nn.Softplus):
        return None
    data, threshold, formats = result.args[0], large.args[1], reader.formats.get(result, {})
    # x may be rounded by a layer of its own
    is_rounded = x.args[:1] == (data,) and reader.formats.get(x) == formats
    if not isinstance(threshold, float) or not (x is data or is_rounded):
        return None
    assert isinstance(data, fx.Node)
    value = OnnxValue(node[2].samples, data, grid=formats.get("data_in"))
    return rounded_layer(reader, nn.Softplus(threshold=threshold), value)


@reads("IsInf")
def is_inf(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read whether a number is infinite, of either sign or of one."""
    signs = [bool(node.attribute(f"detect_{sign}", 1)) for sign in ("negative", "positive")]
    if all(signs):
        return reader.call(torch.isinf, node[0])  # type: ignore[no-any-return]
    compared, limit = (torch.le, -math.inf) if signs[0] else (torch.ge, math.inf)
    if not any(signs):
        raise node.wrong("looks for infinities of no sign; leave it out")
    return reader.call(compared, node[0], limit)  # type: ignore[no-any-return]


@reads("Identity", takes_grids=True)
def identity(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read what returns its input."""
    return node[0]


@reads("CumSum", "CumProd")
def running(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a running sum or product, also from the end, and without the number itself."""
    axis = node.axis(axis=(node.numbers(1, "axis") or [0])[0])
    function, start = (torch.cumsum, 0) if node.op == "CumSum" else (torch.cumprod, 1)
    is_reversed, x = bool(node.attribute("reverse", 0)), node[0]
    x = reader.call(torch.flip, x, (axis,)) if is_reversed else x
    result = in_type(reader, reader.call(function, x, axis), x.dtype)
    if node.attribute("exclusive", 0):
        # one place further: the first number is the start, and the last sum is left out
        places = (*(slice(None),) * axis, slice(None, -1))
        first = reader.call(python.getitem, x, (*places[:-1], slice(None, 1)))
        first = reader.call(torch.full_like, first, start)
        result = reader.call(torch.cat, [first, reader.call(python.getitem, result, places)], axis)
    return reader.call(torch.flip, result, (axis,)) if is_reversed else result


@reads("BitShift")
def bit_shift(reader: Reader, node: OnnxNode) -> OnnxValue:
    """Read a shift of integers."""
    ways = {"LEFT": python.lshift, "RIGHT": python.rshift}
    way = node.attribute("direction", "")
    if way not in ways:
        raise node.wrong(f"has the direction {way!r:.20}; it must be LEFT or RIGHT")
    return wrapped(reader, node, reader.call(ways[way], node[0], node[1]))
