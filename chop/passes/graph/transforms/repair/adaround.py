"""AdaRound: learn which weights of a layer to round up and which to round down."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from annotated_types import Ge, Interval
from torch import Tensor, fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.ops import identify
from chop.options import NonNegativeFloat, PositiveFloat, PositiveInt
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.transforms.quantize.quantized_funcs import QuantizedFunction
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.graph.transforms.repair import layers as repair
from chop.passes.graph.transforms.repair.grids import settled, uniform_steps
from chop.passes.graph.transforms.repair.layer_inputs import (
    LayerInputs,
    repair_in_order,
    samples_for,
)
from chop.passes.graph.transforms.repair.layers import QuantizedLayer
from chop.passes.graph.transforms.repair.matrices import LayerMatrix, widened
from chop.passes.select import By

ROWS, ROW_BYTES = 2**14, 2**29  # the most rows of inputs that are kept, and their bytes
STRETCH_LOW, STRETCH_HIGH = -0.1, 1.1  # the sigmoid reaches 0 and 1
ERROR_SHARE = 1e-3  # of the error per weight in the loss, where 1 is the error of plain rounding
SINGLE_CHANGES, SINGLE_CHANGE_ROWS = 16, 2**12  # at the end, of each output, and on which rows

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class AdaRoundSettings:
    """How the rounding of a layer is learned."""

    iterations: int = 1000
    batch_size: int = 1024
    learning_rate: float = 0.1
    regularization: float = 0.01
    warm_start: float = 0.2
    beta_start: float = 20.0
    beta_end: float = 2.0

    def beta(self, iteration: int) -> float | None:
        """Return the exponent of the regularizer, or None in the warm start without it."""
        start = self.warm_start * self.iterations
        if iteration < start:
            return None
        done = (iteration - start) / max(1.0, self.iterations - start)
        # half of a cosine, which is slow at both ends
        return (
            self.beta_end + (self.beta_start - self.beta_end) * (1 + math.cos(math.pi * done)) / 2
        )


@graph_pass("adaround", "transform", needs=("common",))
def adaround_transform_pass(
    graph: MaseGraph,
    *,
    by: By = "name",
    nodes: Sequence[str] = (),
    input_generator: Any = None,
    num_samples: PositiveInt = 1024,
    iterations: PositiveInt = 1000,
    batch_size: PositiveInt = 1024,
    learning_rate: PositiveFloat = 0.1,
    regularization: NonNegativeFloat = 0.01,
    warm_start: Annotated[float, Interval(ge=0, lt=1)] = 0.2,
    beta_start: Annotated[float, Ge(1)] = 20.0,
    beta_end: Annotated[float, Ge(1)] = 2.0,
    seed: Annotated[int, Ge(0)] = 0,
) -> dict[str, Any]:
    """Learn for each weight of quantised linear layers and convolutions to round it up or down.

    Each layer, with the activation function after it, learns to give on quantised inputs what the
    float network gives on float ones, on `num_samples` samples of `input_generator`. It takes
    `iterations` steps of Adam on `batch_size` rows of inputs (a row of a convolution is a patch).
    `regularization` makes weights decide, by an exponent that falls from `beta_start` to `beta_end`
    after a `warm_start` without it. Layers are repaired in the order of the graph, on the inputs
    that the repaired network gives them. `by` and `nodes` choose layers; by default all. Weights
    must be in a format with equal steps (integer, affine). The rounded weights are stored. `seed`
    draws the rows.
    """
    settings = AdaRoundSettings(
        iterations, batch_size, learning_rate, regularization, warm_start, beta_start, beta_end
    )
    targets, skipped = repair.chosen_layers("adaround", graph, by, nodes, _why_not)
    batches = samples_for("adaround", graph, input_generator, num_samples)

    def learned(target: QuantizedLayer, inputs: LayerInputs) -> tuple[Quantized, dict[str, float]]:
        generator = torch.Generator().manual_seed(seed)
        task = _task(graph, target, inputs, generator)
        return _repaired(target, task, settings, generator)

    errors = repair_in_order(graph, batches, targets, "AdaRound", learned)
    return {"repaired": list(errors), "errors": errors, "skipped": skipped}


adaround_transform_pass.chooses(repair.chosen_nodes)


def _why_not(target: QuantizedLayer) -> str | None:
    if LayerMatrix.of(target.layer) is None:
        return "is a transposed convolution; adaround repairs linear layers and other convolutions"
    if uniform_steps(target.layer, target.layer._parameter("weight").detach()) is None:
        name = target.layer.formats["weight"].name
        return f"has weights in {name}, where steps are not equal; use integer or affine, or gptq"
    return None


@dataclass(frozen=True)
class Reconstruction:
    """What a layer has to learn: rows of inputs [groups, rows, inputs], and its results."""

    rows: Tensor
    results: Tensor
    offsets: Tensor | float
    activation: Function

    def gradient(self, weight: Tensor, part: Tensor) -> Tensor:
        """Return the gradient of the mean squared error of some rows by the weights."""
        rows = self.rows.index_select(1, part)
        results = self.results.index_select(1, part)
        sums = rows @ weight.mT + self.offsets
        if self.activation is _identity:
            errors = sums - results
        else:
            with torch.enable_grad():
                values = self.activation(sums.requires_grad_())
                loss = (values - results).square().sum() / 2
            (errors,) = torch.autograd.grad(loss, sums)
        return errors.mT @ rows * (2 / errors.numel())

    def mean_squares(self, weight: Tensor) -> Tensor:
        """Return the mean squared error of each output."""
        sums = self.rows @ weight.mT + self.offsets
        return (self.activation(sums) - self.results).square().mean(1)


def _task(
    graph: MaseGraph, target: QuantizedLayer, inputs: LayerInputs, generator: torch.Generator
) -> Reconstruction:
    layer = target.layer
    form = LayerMatrix.of(layer)
    assert form is not None
    float_weight = widened(form.matrix(layer._parameter("weight").detach()))
    limit = max(1024, min(ROWS, ROW_BYTES // float_weight[:, 0].nbytes))
    share = -(-limit // (len(inputs.batches) * len(target.nodes)))
    bias: Any = layer._parameter("bias")
    activation = activation_after(graph, target.nodes)
    rows, results = [], []
    for quantised, in_float in inputs.of(target.nodes):
        positions = form.draw(quantised, share, generator)
        rows.append(widened(form.rows(layer.q("data_in", quantised), positions)))
        float_rows = widened(form.rows(in_float, positions))
        results.append(activation(float_rows @ float_weight.mT + form.offsets(bias)))
    task = Reconstruction(
        torch.cat(rows, 1), torch.cat(results, 1), form.offsets(layer.q("bias", bias)), activation
    )
    if not bool(task.rows.isfinite().all() & task.results.isfinite().all()):
        raise PassArgsError(f"the inputs of node {target.name!r} are not finite; check the data")
    return task


def activation_after(graph: MaseGraph, nodes: Sequence[fx.Node]) -> Function:
    """Return the float activation function that follows a layer, or the identity."""
    users = {user for node in nodes for user in node.users}
    if len(users) != 1 or len(nodes) != 1:
        return _identity
    (user,) = users
    module = graph.modules[str(user.target)] if user.op == "call_module" else None
    if "activation" not in identify(user, module).traits:
        return _identity
    return _activation(user, module)


def _identity(x: Tensor) -> Tensor:
    return x


def _activation(node: fx.Node, module: Any) -> Function:
    if isinstance(module, Quantized):
        cls: Any = module.float_class
        return lambda x: cls.forward(module, x.clone())
    if module is not None:
        return lambda x: module(x.clone())  # it may write to its input
    function: Any = node.target
    if isinstance(function, QuantizedFunction):
        function = function.target
    elif isinstance(function, str):
        function = getattr(Tensor, function)
    args, kwargs = node.args[1:], {k: v for k, v in node.kwargs.items() if k != "config"}
    if not node.args or any(isinstance(a, fx.Node) for a in (*args, *kwargs.values())):
        return _identity
    return lambda x: function(x.clone(), *args, **kwargs)


def _repaired(
    target: QuantizedLayer,
    task: Reconstruction,
    settings: AdaRoundSettings,
    generator: torch.Generator,
) -> tuple[Quantized, dict[str, float]]:
    """Return the layer with rounded weights, and its error before and after."""
    layer = target.layer
    form = LayerMatrix.of(layer)
    assert form is not None
    before = layer._parameter("weight").detach()
    steps = uniform_steps(layer, widened(before))
    assert steps is not None
    weight, plain = (widened(form.matrix(w)) for w in (before, layer.q("weight", before)))
    learned = learned_rounding(weight, plain, steps, task, settings, generator)
    mask = repair.weight_mask(layer)
    if mask is not None:
        learned = torch.where(form.matrix(mask), learned, plain)
    was, now = task.mean_squares(plain), task.mean_squares(learned)
    start = torch.where((now < was)[..., None], learned, plain)
    other = _other_neighbour(weight, start, steps)
    if mask is not None:
        other = torch.where(form.matrix(mask), other, start)
    polished = with_single_changes(start, other, task)
    now = task.mean_squares(polished)
    best = torch.where((now < was)[..., None], polished, plain)
    stored = settled(layer, before, form.tensor(best).to(before.dtype))
    if stored is None:  # half precision cannot hold all values of a wide format
        raise PassArgsError(f"node {target.name!r} is in {before.dtype}; convert it to float32")
    scale = task.results.square().mean(1).sum().clamp_min(torch.finfo(was.dtype).tiny)
    error = {"before": was.sum() / scale, "after": torch.minimum(was, now).sum() / scale}
    return repair.with_parameter(layer, "weight", stored), {k: v.item() for k, v in error.items()}


def learned_rounding(
    weight: Tensor,
    plain: Tensor,
    steps: tuple[Tensor, Tensor, Tensor],
    task: Reconstruction,
    settings: AdaRoundSettings,
    generator: torch.Generator,
) -> Tensor:
    """Return the weights, each rounded up or down so that the errors of the task are small."""
    step, low, high = steps
    below = (weight / step).floor()
    variable = _inverse(weight / step - below).requires_grad_()
    optimiser = torch.optim.Adam([variable], lr=settings.learning_rate, fused=True)
    unit = task.mean_squares(plain).mean().clamp_min(torch.finfo(weight.dtype).tiny)
    share = (ERROR_SHARE * weight.numel() / unit).item()
    count = task.rows.shape[1]
    order = torch.randint(
        count, (settings.iterations, min(settings.batch_size, count)), generator=generator
    ).to(weight.device)
    base = below * step
    for i in range(settings.iterations):
        # written out, as autograd would launch twice as many kernels
        sigmoid = variable.detach().sigmoid()
        stretched = sigmoid * (STRETCH_HIGH - STRETCH_LOW) + STRETCH_LOW
        up = stretched.clamp(0, 1)
        soft = torch.addcmul(base, up, step)
        slope = task.gradient(soft.clamp(low, high), order[i]).mul_(share).mul_(step)
        slope[(soft < low) | (soft > high)] = 0.0
        beta = settings.beta(i)
        if beta is not None and settings.regularization:
            slope += _undecided_gradient(up, beta).mul_(settings.regularization)
        slope *= sigmoid * (1 - sigmoid) * (STRETCH_HIGH - STRETCH_LOW)
        slope *= up == stretched  # the clamped ones have none
        variable.grad = slope
        optimiser.step()
    up = (_rectified(variable.detach()) >= 0.5).to(weight.dtype)
    return torch.addcmul(base, up, step).clamp(low, high)


def _other_neighbour(
    weight: Tensor, rounded: Tensor, steps: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Return the neighbours of the weights that they were not rounded to."""
    step, low, high = steps
    direction = torch.where(rounded > weight, -step, step)
    return (rounded + direction).clamp(low, high)


def with_single_changes(start: Tensor, other: Tensor, task: Reconstruction) -> Tensor:
    """Change the weights one by one to their `other` value where that lowers an output's error.

    Each turn tries the most promising weight of every output, on a part of the rows.
    """
    part = torch.arange(min(SINGLE_CHANGE_ROWS, task.rows.shape[1]), device=start.device)
    some = replace(task, rows=task.rows[:, part], results=task.results[:, part])
    squares = some.rows.square().mean(1)[:, None]
    weight, other, errors = start.clone(), other.clone(), some.mean_squares(start)
    tried = other == weight
    for _ in range(SINGLE_CHANGES):
        slope = some.gradient(weight, part) * errors.numel()
        change = other - weight
        gain = (change * slope + change.square() * squares).masked_fill(tried, torch.inf)
        best = gain.argmin(-1, keepdim=True)
        candidate = weight.scatter(-1, best, other.gather(-1, best))
        now = some.mean_squares(candidate)
        better = (now < errors)[..., None]
        other = torch.where(better & (candidate != weight), weight, other)
        tried = (tried & ~better).scatter(-1, best, True)
        weight, errors = torch.where(better, candidate, weight), torch.minimum(now, errors)
    return weight


def _undecided_gradient(up: Tensor, beta: float) -> Tensor:
    """Return the gradient of the sum of 1 - |2 up - 1|^beta."""
    side = 2 * up - 1
    return side.abs().pow_(beta - 1).mul_(side.sign()).mul_(-2 * beta)


def _rectified(variable: Tensor) -> Tensor:
    """Return the stretched sigmoid, from 0 (round down) to 1 (round up)."""
    spread = STRETCH_HIGH - STRETCH_LOW
    return (variable.sigmoid() * spread + STRETCH_LOW).clamp(0, 1)


def _inverse(fraction: Tensor) -> Tensor:
    """Return the variable for which the stretched sigmoid gives a fraction."""
    return ((fraction - STRETCH_LOW) / (STRETCH_HIGH - STRETCH_LOW)).logit()
