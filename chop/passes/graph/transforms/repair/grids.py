"""The values that each weight of a layer can take, while the scales of its format stay fixed."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.numerics import NumberFormat
from chop.numerics.grid import ElementGrid, FixedScales
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.graph.transforms.repair.matrices import LayerMatrix


def why_no_grid(layer: Quantized) -> str | None:
    """Return why the weights of a layer have no grid that stays fixed, or None if they have."""
    fmt = layer.formats["weight"]
    if not fmt.deterministic:
        return f"has weights in {fmt.name}, which rounds at random; use a deterministic format"
    if fmt.with_scales_of(layer._parameter("weight").detach()) is None:
        return f"has weights in {fmt.name}, where it is unknown which numbers share a scale"
    return None


def weight_grid(layer: Quantized, weight: Tensor, is_pinned: bool = False) -> FixedScales:
    """Return the grid of a layer's weights as matrices, with the scales of `weight`.

    With `is_pinned`, the weights that set a scale can only take the values that they round to.
    """
    form = LayerMatrix.of(layer)
    assert form is not None
    fmt = layer.formats["weight"]
    if (uniform := _uniform(layer, weight)) is not None:
        return FixedScales(_nearest_step, uniform).mapped(form.matrix)
    grid = _with_scales(fmt, weight)
    if is_pinned and grid.sets_scale is not None:
        grid = _pinned(grid, grid.sets_scale, fmt(weight))
    return grid.mapped(form.matrix)


def _with_scales(fmt: NumberFormat, weight: Tensor) -> FixedScales:
    found = fmt.with_scales_of(weight)
    assert found is not None, "why_no_grid refuses others"
    return found


def _pinned(grid: FixedScales, is_pinned: Tensor, value: Tensor) -> FixedScales:
    """Return the grid with one value only for some of the weights."""

    def rule(x: Tensor, is_pinned: Tensor, value: Tensor, *scales: Tensor) -> Tensor:
        return torch.where(is_pinned, value, grid.rule(x, *scales))

    return FixedScales(rule, (is_pinned, value, *grid.scales))


def settled(layer: Quantized, before: Tensor, weight: Tensor) -> Tensor | None:
    """Return what to store so that rounding on the fly gives `weight`; None if nothing does.

    That is the weight itself, if the format rounds it to itself. Otherwise those that set a scale
    keep the value that they had `before`.
    """
    rounded: Tensor = layer.q("weight", weight)
    is_near = torch.allclose(rounded, weight, rtol=1e-6, atol=0)  # a scale may differ in a bit
    if is_near and torch.equal(layer.q("weight", rounded), rounded):
        return rounded
    sets_scale = _with_scales(layer.formats["weight"], before).sets_scale
    stored = weight if sets_scale is None else torch.where(sets_scale, before, weight)
    is_near = torch.allclose(layer.q("weight", stored), weight, rtol=1e-6, atol=0)
    return stored if is_near else None


def _uniform(layer: Quantized, weight: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the step, the lowest and the highest value of each weight, if its steps are equal."""
    grid = layer.grid_of("weight")
    if grid is None or isinstance(grid, ElementGrid):
        return None
    # to nearest and saturating, also in a format that rounds down or wraps
    step, point = grid.scale(weight.shape), grid.zero_point(weight.shape)
    step, low, high = (
        x.to(weight).expand_as(weight)
        for x in (step, (grid.low - point) * step, (grid.high - point) * step)
    )
    return step, low, high


def _nearest_step(x: Tensor, step: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return ((x / step).round() * step).clamp(low, high)


def uniform_steps(layer: Quantized, weight: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the steps and ends of a layer's weights as matrices; None if steps differ."""
    form = LayerMatrix.of(layer)
    assert form is not None
    uniform = _uniform(layer, weight)
    if uniform is None:
        return None
    step, low, high = (form.matrix(some) for some in uniform)
    return step, low, high
