"""The values that each weight of a layer can take, while the scales of its format stay fixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.numerics import NumberFormat
from chop.numerics.affine import Affine
from chop.numerics.binary import Binary
from chop.numerics.blocks import BlockFormat, block_shape, from_tiles, tile_amax, to_tiles
from chop.numerics.integer import Integer
from chop.numerics.means import mean_magnitude
from chop.numerics.scale_integer import ScaleInteger
from chop.numerics.ternary import Ternary
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.graph.transforms.repair.matrices import LayerMatrix


@dataclass(frozen=True)
class WeightGrid:
    """Rounds weights to nearest, each with the `scales` at its place.

    `scales` have the shape of the weights, and `rule(x, *scales)` rounds x.
    """

    rule: Callable[..., Tensor]
    scales: tuple[Tensor, ...] = ()

    def nearest(self, x: Tensor, columns: slice | None = None) -> Tensor:
        """Return the nearest values of these columns of the weights."""
        which = slice(None) if columns is None else columns
        return self.rule(x, *(scale[..., which] for scale in self.scales))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> WeightGrid:
        """Return the grid of weights that are laid out differently."""
        return WeightGrid(self.rule, tuple(change(scale) for scale in self.scales))


def why_no_grid(layer: Quantized) -> str | None:
    """Return why the weights of a layer have no grid that stays fixed, or None if they have."""
    fmt = layer.formats["weight"]
    if not fmt.deterministic:
        return f"has weights in {fmt.name}, which rounds at random; use a deterministic format"
    known = (BlockFormat, ScaleInteger, Binary, Ternary)
    if not (fmt.elementwise or isinstance(fmt, known)):
        return f"has weights in {fmt.name}, where it is unknown which numbers share a scale"
    return None


def weight_grid(layer: Quantized, weight: Tensor, is_pinned: bool = False) -> WeightGrid:
    """Return the grid of a layer's weights as matrices, with the scales of `weight`.

    With `is_pinned`, the weights that set a scale can only take the values that they round to.
    """
    form = LayerMatrix.of(layer)
    assert form is not None
    fmt = layer.formats["weight"]
    grid = _grid(layer, weight)
    if is_pinned and (sets_scale := _sets_scale(fmt, weight)) is not None:
        grid = _pinned(grid, sets_scale, fmt(weight))
    return grid.mapped(form.matrix)


def _grid(layer: Quantized, weight: Tensor) -> WeightGrid:
    fmt = layer.formats["weight"]
    if isinstance(fmt, BlockFormat):
        return WeightGrid(fmt.round_blocks, (_block_maxima(fmt, weight),))
    if isinstance(fmt, ScaleInteger):
        return WeightGrid(_scaled(*fmt.codes), (_vector_maxima(weight),))
    if isinstance(fmt, Binary):
        scaled = fmt.scaled or not fmt.bipolar
        scale = mean_magnitude(weight) if scaled else torch.ones_like(weight)
        return WeightGrid(_two_values, (scale.expand_as(weight), _full(weight, fmt.bipolar)))
    if isinstance(fmt, Ternary):
        beyond = weight.abs() > fmt.border(weight)
        scale = mean_magnitude(weight, beyond) if fmt.scaling_factor else torch.ones_like(weight)
        return WeightGrid(_three_values, (scale.expand_as(weight),))
    uniform = _uniform(layer, weight)
    return WeightGrid(fmt) if uniform is None else WeightGrid(_nearest_step, uniform)


def _pinned(grid: WeightGrid, is_pinned: Tensor, value: Tensor) -> WeightGrid:
    """Return the grid with one value only for some of the weights."""

    def rule(x: Tensor, is_pinned: Tensor, value: Tensor, *scales: Tensor) -> Tensor:
        return torch.where(is_pinned, value, grid.rule(x, *scales))

    return WeightGrid(rule, (is_pinned, value, *grid.scales))


def _sets_scale(fmt: NumberFormat, weight: Tensor) -> Tensor | None:
    """Return which weights are the largest of those that share a scale; None if none do."""
    if isinstance(fmt, BlockFormat):
        return weight.abs() == _block_maxima(fmt, weight)
    return weight.abs() == _vector_maxima(weight) if isinstance(fmt, ScaleInteger) else None


def _full(like: Tensor, value: float) -> Tensor:
    return torch.full_like(like, float(value))


def _block_maxima(fmt: BlockFormat, weight: Tensor) -> Tensor:
    """Return the largest magnitude of each weight's block."""
    tiles = to_tiles(weight, block_shape(weight.shape, *fmt.layout(weight.ndim)))
    return from_tiles(tile_amax(tiles).expand_as(tiles), weight.shape)


def _vector_maxima(weight: Tensor) -> Tensor:
    return weight.abs().amax(-1, keepdim=True).expand_as(weight)


def _scaled(full: int, low: int, high: int) -> Callable[[Tensor, Tensor], Tensor]:
    def nearest(x: Tensor, largest: Tensor) -> Tensor:
        parts = x / torch.where(largest > 0, largest, 1.0)
        codes = (parts * full).round().clamp(low, high)
        return codes / torch.full_like(largest, full) * largest

    return nearest


def _two_values(x: Tensor, scale: Tensor, bipolar: Tensor) -> Tensor:
    return torch.where(bipolar > 0, torch.where(x >= 0, scale, -scale), scale * (x > scale / 2))


def _three_values(x: Tensor, scale: Tensor) -> Tensor:
    parts = x / torch.where(scale > 0, scale, 1.0)
    return parts.round().clamp(-1, 1) * scale


def settled(layer: Quantized, before: Tensor, weight: Tensor) -> Tensor | None:
    """Return what to store so that rounding on the fly gives `weight`; None if nothing does.

    That is the weight itself, if the format rounds it to itself. Otherwise those that set a scale
    keep the value that they had `before`.
    """
    rounded: Tensor = layer.q("weight", weight)
    is_near = torch.allclose(rounded, weight, rtol=1e-6, atol=0)  # a scale may differ in a bit
    if is_near and torch.equal(layer.q("weight", rounded), rounded):
        return rounded
    sets_scale = _sets_scale(layer.formats["weight"], before)
    stored = weight if sets_scale is None else torch.where(sets_scale, before, weight)
    is_near = torch.allclose(layer.q("weight", stored), weight, rtol=1e-6, atol=0)
    return stored if is_near else None


def _uniform(layer: Quantized, weight: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the step, the lowest and the highest value of each weight, if its steps are equal."""
    fmt = layer.formats["weight"]
    if isinstance(fmt, Integer):
        # to nearest and saturating, also in a format that rounds down or wraps
        low, high = fmt.range
        return _full(weight, fmt.smallest), _full(weight, low), _full(weight, high)
    if not isinstance(fmt, Affine):
        return None
    scales = layer.scale_of("weight")
    assert scales is not None, "an affine layer knows the scales of its weights"
    step, point = (_along(some.to(weight), fmt.axis, weight) for some in scales)
    lowest, highest = ((code - point) * step for code in fmt.codes)
    return step, lowest, highest


def _along(numbers: Tensor, axis: int | None, weight: Tensor) -> Tensor:
    """Return one number, or one per channel along an axis, for each weight."""
    if axis is None or numbers.ndim == 0:
        return numbers.reshape([1] * weight.ndim).expand_as(weight)
    shape = [1] * weight.ndim
    shape[axis] = -1
    return numbers.reshape(shape).expand_as(weight)


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
