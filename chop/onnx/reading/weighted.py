"""Layers with weights, whose operands may be rounded to grids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from chop.onnx.reading.grids import FileGrid
from chop.onnx.reading.reader import Reader
from chop.onnx.reading.registry import OnnxNode
from chop.onnx.reading.values import OnnxValue, is_constant

__all__ = ["fold_bias", "weighted"]

WITH_BIAS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def weighted(
    reader: Reader,
    layer: nn.Module,
    node: OnnxNode,
    tensors: Mapping[str, Tensor],
    axes: Mapping[int, int],
    *,
    bias: OnnxValue | None = None,
    data: OnnxValue | None = None,
    exact: bool = True,
) -> OnnxValue:
    """Call a layer of the inputs data, weight and bias, with the grids of these as its formats.

    `axes` maps dimensions of the weight in the file to those in the layer. Unless `exact`, the
    weight was changed, and is on its grid no more.
    """
    data = node[0] if data is None else data
    weight_grid = _turned(node[1].grid, axes)
    is_rounded = data.grid is not None and weight_grid is not None and exact
    problems = [g.why_not() for g in (data.grid, weight_grid) if g is not None]
    if not is_rounded or any(problems) or data.is_codes or _by_channel(data.grid):
        return reader.layer(layer, reader.settled(data), weights=tensors)  # type: ignore[no-any-return]
    result: OnnxValue = reader.layer(layer, data.with_grid(None), weights=tensors)
    assert result.node is not None
    assert data.grid is not None
    assert weight_grid is not None
    grids = {"data_in": data.grid, "weight": weight_grid}
    if bias is not None and bias.grid is not None:
        grids["bias"] = bias.grid
    reader.formats[result.node] = grids
    return result


def _by_channel(grid: FileGrid | None) -> bool:
    return grid is not None and grid.axis is not None


def _turned(grid: FileGrid | None, axes: Mapping[int, int]) -> FileGrid | None:
    """Return the grid of a weight in the dimensions of the layer."""
    if grid is None or grid.axis is None:
        return grid
    return replace(grid, axis=axes.get(grid.axis % len(axes), grid.axis))


def fold_bias(reader: Reader, node: OnnxNode) -> OnnxValue | None:
    """Return the result of a layer to which a constant is added, with the constant as its bias.

    None if the addition is something else.
    """
    for place in (0, 1):
        result, bias = node[place], node[1 - place]
        layer = reader.module_of(result)
        if not isinstance(layer, WITH_BIAS) or layer.bias is not None or not is_constant(bias):
            continue
        alone = reader.uses.get(node.input_names[place]) == 1 and result.grid is None
        row = _row(bias.tensor, result, channel=-1 if isinstance(layer, nn.Linear) else 1)
        if not alone or row is None or bias.dtype != result.dtype:
            continue
        reader.count(row.numel())
        layer.bias = nn.Parameter(row.detach().clone())
        if result.node in reader.formats and bias.grid is not None:
            axis = None if bias.grid.axis is None else 0
            reader.formats[result.node]["bias"] = replace(bias.grid, axis=axis)
        return result
    return None


def _row(bias: Tensor, result: OnnxValue, channel: int) -> Tensor | None:
    """Return a constant as one number per channel; None if it differs in other dimensions."""
    if bias.dim() > result.rank:
        return None
    shape = [1] * (result.rank - bias.dim()) + list(bias.shape)
    channels = result.tensor.shape[channel]
    others = [size for place, size in enumerate(shape) if place != channel % result.rank]
    if any(size != 1 for size in others) or shape[channel] not in (1, channels):
        return None
    return bias.reshape(-1).expand(channels)
