"""GPTQ: round the weights of a layer one input at a time, and let the others make up for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from chop.ir.graph.mase_graph import MaseGraph
from chop.numerics.grid import FixedScales
from chop.options import PositiveInt
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.graph.transforms.repair import layers as repair
from chop.passes.graph.transforms.repair.grids import (
    settled,
    weight_grid,
    why_no_grid,
)
from chop.passes.graph.transforms.repair.layer_inputs import (
    LayerInputs,
    repair_in_order,
    samples_for,
)
from chop.passes.graph.transforms.repair.layers import QuantizedLayer
from chop.passes.graph.transforms.repair.matrices import LayerMatrix, widened
from chop.passes.select import By

MAX_DAMPING = 1e3  # with which any Hessian is positive definite
ROWS = 2**16  # at least this many rows of inputs of a layer count, and `ROWS_PER_INPUT` per input
ROWS_PER_INPUT = 16
MAX_IN_FLOAT64 = 4096  # inputs of a layer; beyond, float32 takes half of the time and memory
# damping beside the option, per input and row: what fits a few rows means little for others
FIT_DAMPING, ROUNDING_DAMPING = 1.0, 0.1


@dataclass(frozen=True)
class GPTQSettings:
    """How the columns of a weight are rounded one after the other."""

    block_size: int = 128
    damping: float = 0.01
    act_order: bool = True
    asymmetric: bool = True


@dataclass(frozen=True)
class Moments:
    """Mean products of the quantised inputs of a layer, and of the float ones with them."""

    hessian: Tensor
    cross: Tensor
    rows: int  # how many inputs the means are over

    @property
    def scarcity(self) -> float:
        """The number of weights of an output for each row."""
        return self.hessian.shape[-1] / max(1, self.rows)


@graph_pass("gptq", "transform", needs=("common",))
def gptq_transform_pass(
    graph: MaseGraph,
    *,
    by: By = "name",
    nodes: Sequence[str] = (),
    input_generator: Any = None,
    num_samples: PositiveInt = 1024,
    block_size: PositiveInt = 128,
    damping: Annotated[float, Gt(0)] = 0.01,
    act_order: bool = True,
    asymmetric: bool = True,
    seed: Annotated[int, Ge(0)] = 0,
) -> dict[str, Any]:
    """Round the weights of quantised linear layers and convolutions by GPTQ.

    The columns of a weight are rounded in the layer's format one after the other, in blocks of
    `block_size`; those that are left make up for the error, as the inputs of the layer on
    `num_samples` samples of `input_generator` tell (`damping` times the mean of their squares is
    added to each square). `act_order` starts with the inputs that are largest. `asymmetric` aims at
    the results of the float network, and so also makes up for the error of the quantised inputs.
    Layers are repaired in the order of the graph, on the inputs that the repaired network gives
    them. `by` and `nodes` choose layers; by default all. The rounded weights are stored. Of a
    convolution with many positions, some are drawn by `seed`.
    """
    settings = GPTQSettings(block_size, damping, act_order, asymmetric)
    targets, skipped = repair.chosen_layers("gptq", graph, by, nodes, _why_not)
    batches = samples_for("gptq", graph, input_generator, num_samples)
    rounded = partial(_repaired, settings=settings, seed=seed)
    errors = repair_in_order(graph, batches, targets, "GPTQ", rounded)
    return {"repaired": list(errors), "errors": errors, "skipped": skipped}


gptq_transform_pass.chooses(repair.chosen_nodes)


def _why_not(target: QuantizedLayer) -> str | None:
    if LayerMatrix.of(target.layer) is None:
        return "is a transposed convolution; gptq repairs linear layers and other convolutions"
    return why_no_grid(target.layer)


def _repaired(
    target: QuantizedLayer, inputs: LayerInputs, settings: GPTQSettings, seed: int
) -> tuple[Quantized, dict[str, float]]:
    """Return the layer with rounded weights, and its error before and after."""
    layer = target.layer
    form = LayerMatrix.of(layer)
    assert form is not None
    before = layer._parameter("weight").detach()
    moments = collect_moments(target, form, inputs, seed)
    mask = repair.weight_mask(layer)
    keep = None if mask is None else form.matrix(mask)
    weight, plain = (widened(form.matrix(w)) for w in (before, layer.q("weight", before)))
    aim = _aim(weight, moments, settings)
    was = _errors(aim - plain, moments.hessian)
    damping = settings.damping + ROUNDING_DAMPING * moments.scarcity
    damped = replace(settings, damping=damping)
    for is_pinned in (False, True):
        grid = weight_grid(layer, widened(before), is_pinned)
        rounded = rounded_by_gptq(aim, moments.hessian, grid, damped, keep)
        now = _errors(aim - rounded, moments.hessian)
        rounded = torch.where((now < was)[..., None], rounded, plain)
        stored = settled(layer, before, form.tensor(rounded).to(before.dtype))
        if stored is not None:
            break
    else:
        raise PassArgsError(
            f"node {target.name!r} has weights in {layer.formats['weight'].name}, which rounds the "
            f"repaired weights to others again; choose another format for it"
        )
    scale = _errors(weight, moments.hessian).sum().clamp_min(torch.finfo(weight.dtype).tiny)
    error = {"before": was.sum() / scale, "after": torch.minimum(was, now).sum() / scale}
    return repair.with_parameter(layer, "weight", stored), {k: v.item() for k, v in error.items()}


def collect_moments(
    target: QuantizedLayer, form: LayerMatrix, inputs: LayerInputs, seed: int
) -> Moments:
    """Return the mean products of the layer's inputs."""
    like: Any = target.layer.weight
    size = form.matrix(like).shape[-1]
    share = -(-max(ROWS, ROWS_PER_INPUT * size) // (len(inputs.batches) * len(target.nodes)))
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float64 if size <= MAX_IN_FLOAT64 else torch.float32
    hessian = torch.zeros(form.groups, size, size, dtype=dtype, device=like.device)
    cross, count = torch.zeros_like(hessian), 0
    for quantised, in_float in inputs.of(target.nodes):
        positions = form.draw(quantised, share, generator)
        rows = widened(form.rows(target.layer.q("data_in", quantised), positions))
        float_rows = widened(form.rows(in_float, positions))
        hessian += rows.mT @ rows
        cross += float_rows.mT @ rows
        count += rows.shape[1]
    if not bool(hessian.isfinite().all() & cross.isfinite().all()):
        raise PassArgsError(f"the inputs of node {target.name!r} are not finite; check the data")
    return Moments(hessian / max(1, count), cross / max(1, count), count)


def _aim(weight: Tensor, moments: Moments, settings: GPTQSettings) -> Tensor:
    """Return the float weights that come nearest to the float results on quantised inputs."""
    if not settings.asymmetric:
        return weight
    damping = settings.damping + FIT_DAMPING * moments.scarcity
    factor = _cholesky(moments.hessian, damping)
    gap = weight.to(factor) @ (moments.cross - moments.hessian)
    return (weight + torch.cholesky_solve(gap.mT, factor).mT).to(weight.dtype)


def _errors(difference: Tensor, hessian: Tensor) -> Tensor:
    """Return the mean squared error of each output for a difference of the weights."""
    wide = difference.to(hessian)
    errors: Tensor = ((wide @ hessian) * wide).sum(-1)
    return errors


def _cholesky(hessian: Tensor, damping: float) -> Any:
    """Return the lower factor; with more damping if a Hessian is not positive definite."""
    squares = hessian.diagonal(dim1=-2, dim2=-1)
    dead = (squares <= 0).to(hessian.dtype)  # an input that is always zero
    mean = squares.mean(-1, keepdim=True)
    while True:
        added = dead + damping * torch.where(mean > 0, mean, 1.0)
        factor, failed = torch.linalg.cholesky_ex(hessian + torch.diag_embed(added))
        if not bool(failed.any()) or damping > MAX_DAMPING:
            return factor
        damping *= 10


def _inverse_factor(hessian: Tensor, damping: float) -> Any:
    """Return the upper factor of the inverse; with more damping if it is not positive definite."""
    while True:
        inverse = torch.cholesky_inverse(_cholesky(hessian, damping))
        factor, failed = torch.linalg.cholesky_ex(inverse, upper=True)
        if not bool(failed.any()) or damping > MAX_DAMPING:
            return factor
        damping *= 10


def rounded_by_gptq(
    weight: Tensor,
    hessian: Tensor,
    grid: FixedScales,
    settings: GPTQSettings,
    keep: Tensor | None = None,
) -> Tensor:
    """Return weights [groups, outputs, inputs] on the grid; zero where `keep` is False."""
    squares = hessian.diagonal(dim1=-2, dim2=-1)
    order = torch.arange(weight.shape[-1], device=weight.device).expand_as(squares)
    if settings.act_order:
        order = squares.argsort(dim=-1, descending=True, stable=True)
    back = order.argsort(dim=-1)
    arranged = hessian.gather(1, order[:, :, None].expand_as(hessian))
    arranged = arranged.gather(2, order[:, None, :].expand_as(hessian))
    upper = _inverse_factor(arranged, settings.damping).to(weight.dtype)

    def ordered(x: Tensor) -> Tensor:
        return x.gather(-1, order[:, None, :].expand_as(x))

    kept = None if keep is None else ordered(keep)
    rounded = _rounded_in_order(
        ordered(weight), upper, grid.mapped(ordered), settings.block_size, kept
    )
    return rounded.gather(-1, back[:, None, :].expand_as(rounded))


def _rounded_in_order(
    weight: Tensor, upper: Tensor, grid: FixedScales, block_size: int, keep: Tensor | None
) -> Tensor:
    """Round column after column; `upper` is the factor of the inverse Hessian."""
    left, rounded = weight.clone(), torch.empty_like(weight)
    for start in range(0, weight.shape[-1], block_size):
        block = slice(start, min(start + block_size, weight.shape[-1]))
        errors = torch.zeros_like(left[..., block])
        for column in range(block.start, block.stop):
            here, rest = slice(column, column + 1), slice(column, block.stop)
            nearest = grid.nearest(left[..., here], here)
            if keep is not None:
                nearest = nearest * keep[..., here]
            rounded[..., here] = nearest
            error = (left[..., here] - nearest) / upper[:, here, here]
            left[..., rest] -= error @ upper[:, here, rest]
            errors[..., column - start : column - start + 1] = error
        left[..., block.stop :] -= errors @ upper[:, block, block.stop :]
    return rounded
