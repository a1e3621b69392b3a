"""Layers and functions of one kind of operand, which may be rounded to a grid."""

from __future__ import annotations

from typing import Any

from torch import nn

from chop.onnx.reading.reader import Reader
from chop.onnx.reading.values import OnnxValue

__all__ = ["rounded_call", "rounded_layer"]


def _takes(value: OnnxValue) -> bool:
    """Whether a node can have the grid of a value as the format of its input."""
    grid = value.grid
    known = value.is_known or value.is_codes
    return grid is not None and not known and grid.axis is None and grid.why_not() is None


def rounded_layer(reader: Reader, layer: nn.Module, value: OnnxValue) -> OnnxValue:
    """Call a layer without weights; the grid of its input becomes its format."""
    if not _takes(value):
        return reader.layer(layer, reader.settled(value))  # type: ignore[no-any-return]
    assert value.grid is not None
    result: OnnxValue = reader.layer(layer, value.with_grid(None))
    assert result.node is not None
    reader.formats[result.node] = {"data_in": value.grid}
    return result


def rounded_call(reader: Reader, function: Any, first: OnnxValue, second: OnnxValue) -> OnnxValue:
    """Call a function of two numbers; a grid that both have becomes its format."""
    if not (_takes(first) and _takes(second) and first.grid == second.grid):
        return reader.call(function, reader.settled(first), reader.settled(second))  # type: ignore[no-any-return]
    assert first.grid is not None
    result: OnnxValue = reader.call(function, first.with_grid(None), second.with_grid(None))
    assert result.node is not None
    reader.formats[result.node] = {"data_in": first.grid}
    return result
