"""Prune weights and activations without changing shapes: numbers become zero."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from chop.ir.dotted import deepsetattr
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import module_op
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.transforms.pruning import methods
from chop.passes.graph.transforms.pruning.activation import attach_activation_pruning
from chop.passes.graph.transforms.pruning.masks import attach_mask, masks_of, renewed
from chop.passes.graph.transforms.pruning.methods import METHODS, scored_tensor, share, smallest
from chop.passes.graph.transforms.pruning.plan import (
    Pattern,
    PruneRequest,
    is_prunable,
    warn_of_unpruned,
)
from chop.passes.graph.transforms.pruning.weights import (
    LayerWeight,
    layer_masks,
    weight_count,
    weight_names,
)
from chop.passes.options import NodeChoice, Problem

logger = logging.getLogger(__name__)


@graph_pass("prune", "transform", needs=("common",))
def prune_transform_pass(
    graph: MaseGraph,
    *,
    weight: Mapping[str, Any] | None = None,
    activation: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Mask the least important weights of layers, and inputs of linear and convolutional ones.

    Each table has `sparsity` (the share that becomes zero, or shares by type, name or regular
    expression, as `by` says), `scope` ("local" ranks each weight by itself, "global" all together),
    `granularity` ("elementwise", "channel", or "2:4" and the like) and `method` ("random",
    "l1-norm", "l2-norm", "movement"). Pruned weights stay pruned. Returns the requested and
    the reached sparsity.
    """
    tables = _tables({"weight": weight, "activation": activation})
    read = {name: PruneRequest.read(name, table) for name, table in tables.items()}
    plans = {name: (request, request.per_node(graph)) for name, request in read.items()}
    if "activation" in plans:
        _check_activation(*plans["activation"])
    if "weight" in plans:
        warn_of_unpruned(graph)
    info: dict[str, Any] = {}
    if "weight" in plans:
        info["weight"] = _prune_weights(graph, *plans["weight"], seed)
        logger.info("Pruned weights:\n%s", sparsity_table(info["weight"]))
    if "activation" in plans:
        info["activation"] = _prune_activations(graph, *plans["activation"], seed)
    return info


@prune_transform_pass.law
def _laws(options: Mapping[str, Any]) -> Iterator[Problem]:
    tables = _tables(options)
    for name, table in tables.items():
        yield from PruneRequest.problems(name, table)
    if not any(tables.values()):
        yield Problem("", "there is nothing to prune; give a table 'weight' or 'activation'")
    inputs = tables.get("activation", {})
    if inputs.get("method") == "movement":
        text = "activation.method 'movement' is for weights; give another method"
        yield Problem("activation.method", text)
    if inputs.get("granularity", "elementwise") != "elementwise":
        text = "activation.granularity is 'elementwise'; weights can have others"
        yield Problem("activation.granularity", text)


@prune_transform_pass.chooses
def _chosen(options: Mapping[str, Any]) -> Iterator[NodeChoice]:
    for name, table in _tables(options).items():
        yield from PruneRequest.choices(name, table)


def _tables(options: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    names = ("weight", "activation")
    return {name: options[name] for name in names if options[name] is not None}


def _prune_weights(
    graph: MaseGraph, request: PruneRequest, asked: Mapping[fx.Node, float], seed: int
) -> dict[str, dict[str, float]]:
    layers = {node: graph.modules[str(node.target)] for node in asked}
    if not any(map(is_prunable, graph.nodes)):
        logger.warning("This graph has no layer with weights that can be pruned.")
    weights = [LayerWeight(n, name) for n, layer in layers.items() for name in weight_names(layer)]
    if request.scope == "global" and not isinstance(request.granularity, Pattern):
        scores = {w: _scores(layers[w.node], w, request, seed) for w in weights}
        removed = _removed_globally(scores, asked)
    else:
        removed = {w: _removed(layers[w.node], w, request, seed, asked[w.node]) for w in weights}
    for node, layer in layers.items():
        # counting is several times faster than any()
        marks = {w: removed.pop(w) for w in weights if w.node is node}
        marks = {w: mark for w, mark in marks.items() if torch.count_nonzero(mark)}
        if not marks:
            continue
        logger.info("Pruning module: %s", node.name)
        new = renewed(layer)
        for weight, mark in marks.items():
            mask = _as_weight(mark.logical_not_(), weight.holder(layer), weight, request)
            attach_mask(weight.holder(new), weight.last, mask)
        deepsetattr(graph.model, str(node.target), new)
    requested = asked if request.scope == "local" else {}
    return _reached(graph, asked, requested, request)


def _scores(layer: nn.Module, weight: LayerWeight, request: PruneRequest, seed: int) -> Tensor:
    """Scores of the parts of a weight in the shape for `_as_weight`; -infinity if already pruned.

    Elementwise, a vector; by channel, one number per channel; by pattern, a matrix of groups.
    """
    scored = scored_tensor(layer, request.method, weight.target, weight.name)
    numbers = _output_first(layer, scored, request)
    mask = masks_of(weight.holder(layer)).get(weight.last)
    by_channel = request.granularity == "channel"
    rows = numbers.flatten(1) if by_channel else numbers.reshape(-1, 1)
    values = METHODS[request.method](rows, methods.generator_for(seed, weight.target))
    if mask is not None:
        alive = _output_first(layer, mask, request).reshape(rows.shape).any(1)
        values = values.masked_fill(~alive, -torch.inf)
    if isinstance(request.granularity, Pattern):
        return _grouped(values.reshape(numbers.shape), request.granularity.of)
    return values


def _output_first(layer: nn.Module, tensor: Tensor | None, request: PruneRequest) -> Tensor:
    """The detached weight; (out, in, …) if the granularity needs that order."""
    assert tensor is not None
    cls: Any = type(layer)
    op = module_op(cls)
    input_first = op is not None and (op.name == "transposed_linear" or "transposed" in op.traits)
    turned = input_first and request.granularity != "elementwise"
    return tensor.detach().transpose(0, 1) if turned else tensor.detach()


def _grouped(values: Tensor, size: int) -> Tensor:
    """Groups of `size` neighbours along the input; the last is padded with values that go first."""
    lines = values.movedim(1, -1)
    missing = -lines.shape[-1] % size
    padded: Tensor = F.pad(lines, (0, missing), value=-torch.inf)
    return padded.reshape(*padded.shape[:-1], -1, size)


def _removed(
    layer: nn.Module, weight: LayerWeight, request: PruneRequest, seed: int, sparsity: float
) -> Tensor:
    """Mark the parts to remove from one weight, ranked within it."""
    by_size = METHODS[request.method] in (methods.l1_scores, methods.l2_scores)
    if by_size and request.granularity == "elementwise" and not layer_masks(layer):
        numbers = scored_tensor(layer, request.method, weight.target, weight.name).reshape(-1)
        return methods.smallest_in_size(numbers, share(sparsity, len(numbers)))
    scores = _scores(layer, weight, request, seed)
    if isinstance(pattern := request.granularity, Pattern):
        return smallest(scores, pattern.of - pattern.keep if sparsity else 0)
    return smallest(scores, share(sparsity, scores.numel()))


def _removed_globally(
    scores: Mapping[LayerWeight, Tensor], asked: Mapping[fx.Node, float]
) -> dict[LayerWeight, Tensor]:
    if not scores:
        return {}
    (sparsity,) = set(asked.values())
    device = next(iter(scores.values())).device
    together = torch.cat([s.to(device) for s in scores.values()])
    removed = smallest(together, share(sparsity, len(together)))
    parts = torch.split(removed, [len(s) for s in scores.values()])
    return {w: part.to(scores[w].device) for w, part in zip(scores, parts, strict=True)}


def _as_weight(
    kept: Tensor, holder: nn.Module, weight: LayerWeight, request: PruneRequest
) -> Tensor:
    """Convert marks of elements, channels or groups to a mask; pruned weights stay pruned."""
    numbers = _output_first(holder, holder._parameters[weight.last], request)
    if request.granularity == "channel":
        mask = kept.reshape(-1, *[1] * (numbers.dim() - 1)).expand_as(numbers)
    elif isinstance(request.granularity, Pattern):
        mask = kept.flatten(-2)[..., : numbers.shape[1]].movedim(-1, 1)
    else:
        mask = kept.reshape(numbers.shape)
    mask = _output_first(holder, mask, request)  # and back
    old = masks_of(holder).get(weight.last)
    return mask if old is None else mask & old


def _reached(
    graph: MaseGraph,
    asked: Mapping[fx.Node, float],
    requested: Mapping[fx.Node, float],
    request: PruneRequest,
) -> dict[str, dict[str, float]]:
    """Requested and reached sparsity of each layer and of all, with the counts."""
    rows: dict[str, dict[str, float]] = {}
    for node in asked:
        layer = graph.modules[str(node.target)]
        total, masks = weight_count(layer), layer_masks(layer).values()
        pruned = sum(mask.numel() - int(torch.count_nonzero(mask)) for mask in masks)
        rows[node.name] = sparsity_row(requested.get(node), pruned, total)
    pruned, total = (sum(int(row[key]) for row in rows.values()) for key in ("pruned", "total"))
    wanted = request.sparsity if isinstance(request.sparsity, float) else None
    rows["total"] = sparsity_row(wanted, pruned, total)
    return rows


def sparsity_row(requested: float | None, pruned: int, total: int) -> dict[str, Any]:
    """Return the requested and the reached sparsity with the counts."""
    reached = pruned / total if total else 0.0
    return {"requested": requested, "reached": reached, "pruned": pruned, "total": total}


def sparsity_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Format requested and reached sparsity as a table, one row per layer."""
    from tabulate import tabulate

    headers = ("Layer", "Requested", "Reached", "Pruned", "Total")
    keys = ("requested", "reached", "pruned", "total")
    return tabulate([(name, *(row[k] for k in keys)) for name, row in rows.items()], headers)


def _check_activation(request: PruneRequest, asked: Mapping[fx.Node, float]) -> None:
    if request.scope == "local" or request.method == "random":
        return
    for node in asked:
        if "value" not in mase(node).common.args.tensor("data_in_0"):
            raise PassArgsError(
                f"activation.scope 'global' compares activations, but node {node.name!r} has none "
                f"in its metadata; run add_common_metadata with add_value = True first"
            )


def _prune_activations(
    graph: MaseGraph, request: PruneRequest, asked: Mapping[fx.Node, float], seed: int
) -> dict[str, dict[str, Any]]:
    ranked = request.scope == "global" and request.method != "random" and any(asked.values())
    threshold = _threshold(asked) if ranked else None
    for node, sparsity in asked.items():
        if sparsity == 0:
            continue
        logger.info("Pruning activations of module: %s", node.name)
        new = renewed(graph.modules[str(node.target)])
        attach_activation_pruning(new, sparsity, request.method, seed, threshold)
        deepsetattr(graph.model, str(node.target), new)
    return {node.name: {"requested": sparsity} for node, sparsity in asked.items()}


def _threshold(asked: Mapping[fx.Node, float]) -> float:
    """The largest activation to be pruned over all layers together."""
    values = [mase(n).common.args.tensor("data_in_0").value.detach().flatten() for n in asked]
    together = torch.cat([value.abs().cpu().float() for value in values])
    (sparsity,) = set(asked.values())
    count = share(sparsity, len(together))
    return float(together.kthvalue(count).values) if count else -1.0
