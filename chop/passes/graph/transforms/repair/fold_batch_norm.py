"""Fold batch norms into the layers before or after them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import has_trait
from chop.passes.base import graph_pass
from chop.passes.graph.transforms import metadata_sync as sync
from chop.passes.graph.transforms.fusion import (
    LAYERS,
    drop_unread,
    fold_following_norms,
    followed_by_norms,
    is_norm,
    kind_of,
    norm_of,
    scale_and_shift,
    scaled,
    warn_of_skipped,
    why_not_fused,
    why_not_one_layer,
    with_parameters,
)
from chop.passes.graph.transforms.repair.channels import (
    ChannelDim,
    along_inputs,
    axis_after,
    data_input,
    data_users,
    fits_input,
    forget_statistics,
    is_watched,
)
from chop.system.progress import progress_bar

logger = logging.getLogger(__name__)
NO_LAYER = "no linear layer or convolution stands directly before or after it"
Calls = Iterable[tuple[nn.Module, list[fx.Node]]]


@graph_pass("fold_batch_norm", "transform", needs=("common",))
def fold_batch_norm_transform_pass(
    graph: MaseGraph, *, side: Literal["both", "after", "before"] = "both"
) -> dict[str, Any]:
    """Fold batch norms, as they act in eval mode, into the convolution or linear layer beside them.

    `side` is where the norm stands: "after" a layer, as `conv_bn_fusion` folds it, "before" one,
    directly or with dropout, identity or flatten in between, or "both", of which the layer before
    the norm comes first. Afterwards the layer alone computes what both computed in eval mode, up to
    the rounding of its dtype. A norm that cannot be folded stays, with a warning that gives the
    reason, such as zero padding, which the shift of a norm before the layer does not reach; one
    without a layer beside it, as between two activations, is listed in `skipped`.
    """
    folded: list[str] = []
    skipped: dict[str, str] = {}
    if side != "before":
        folded, skipped = fold_following_norms(graph, _with_progress(graph, "after"))
    if side != "after":
        names, others = _fold_preceding_norms(graph, _with_progress(graph, "before"))
        left = {node.name for node in graph.nodes if any(is_norm(graph, u) for u in node.users)}
        skipped = {name: reason for name, reason in skipped.items() if name in left} | others
        folded += names
    if side == "both":
        stay = why_norms_stay(graph)
        for node in (node for node, reason in stay.items() if reason == NO_LAYER):
            skipped[node.name] = NO_LAYER
            logger.info("The batch norm %r stays: %s", node.name, NO_LAYER)
    return {"folded": folded, "skipped": skipped}


def why_norms_stay(graph: MaseGraph) -> dict[fx.Node, str | None]:
    """Why each batch norm cannot be folded into a layer beside it, or None if it can."""
    reasons = {node: list[str | None]() for node in graph.nodes if is_norm(graph, node)}
    read = sync.read_modules(graph)
    for layer, nodes in sync.calls(graph).items():
        if not isinstance(layer, LAYERS):
            continue
        pairs = list(followed_by_norms(graph, layer, nodes))
        if pairs:
            reason = why_not_fused(graph, layer, nodes, pairs, read)
            for _, norm in pairs:
                reasons[norm].append(reason)
        found = _preceding(graph, nodes[0])
        if found is not None:
            reasons[found.norm].append(_why_not(graph, layer, nodes, found, read))
    return {
        norm: None if None in each else next(iter(each), NO_LAYER) for norm, each in reasons.items()
    }


def _with_progress(graph: MaseGraph, side: str) -> Calls:
    layers = [item for item in sync.calls(graph).items() if isinstance(item[0], LAYERS)]
    return progress_bar(layers, desc=f"Folding batch norms {side} layers", disable=not layers)


class _Preceding(NamedTuple):
    """A batch norm before a layer, and the nodes between them."""

    norm: fx.Node
    between: list[fx.Node]


def _preceding(graph: MaseGraph, node: fx.Node) -> _Preceding | None:
    """Find the batch norm that a layer reads, also through no-ops and reshapes."""
    between: list[fx.Node] = []
    source = data_input(node)
    while source is not None and not is_norm(graph, source):
        op = mase(source).common.mase_op
        if not has_trait(op, "no_op") and not has_trait(op, "reshape"):
            return None
        between.insert(0, source)
        source = data_input(source)
    return None if source is None else _Preceding(source, between)


def _fold_preceding_norms(graph: MaseGraph, calls: Calls) -> tuple[list[str], dict[str, str]]:
    """Fold the batch norms before these layers; return their names, and why others stay."""
    read = sync.read_modules(graph)
    folded: list[str] = []
    skipped: dict[str, str] = {}
    for layer, nodes in calls:
        while (found := _preceding(graph, nodes[0])) is not None:
            reason = _why_not(graph, layer, nodes, found, read)
            norm = norm_of(graph, found.norm)
            new = None if reason else _folded(layer, norm, _axis(found))
            if new is None:
                skipped[nodes[0].name] = warn_of_skipped(nodes[0], reason)
                break
            sync.exchange(graph, nodes, new)
            folded.append(found.norm.name)
            _remove(graph, nodes[0], found)
            layer = new
    return folded, skipped


def _why_not(
    graph: MaseGraph,
    layer: nn.Module,
    nodes: list[fx.Node],
    found: _Preceding,
    read: set[nn.Module],
) -> str | None:
    """Why a layer cannot take in the batch norm before it, or None if it can."""
    kind, between = kind_of(layer), [found.norm, *found.between]
    if len(nodes) > 1:
        return f"{kind} called again without the batch norm before it"
    if any(len(data_users(node)) > 1 for node in between):
        return "Batch norm output used by other nodes"
    norm = norm_of(graph, found.norm)
    reason = why_not_one_layer(layer, norm, read)
    if reason is not None:
        return reason
    assert isinstance(norm, _BatchNorm)
    watched = [norm, *(mase(node).module for node in between)]
    if layer._forward_pre_hooks or any(is_watched(module) for module in watched):
        return f"Hooks observe the result between batch norm and {kind.lower()}"
    axis = _axis(found)
    if axis is None or not fits_input(nodes[0], layer, axis):
        return f"{kind} channels are not what the batch norm normalises"
    if scale_and_shift(norm)[1].any() and not _shifts_evenly(layer):
        cause = "is transposed" if isinstance(layer, _ConvTransposeNd) else "pads with zeros"
        return f"{kind} {cause}: the shift of the batch norm does not reach every output alike"
    return None


def _axis(found: _Preceding) -> ChannelDim | None:
    """The channels of the norm in what the layer reads."""
    axis: ChannelDim | None = ChannelDim(1)
    for node in found.between:
        axis = axis and axis_after(node, axis)
    return axis


def _shifts_evenly(layer: nn.Module) -> bool:
    """Whether a constant added to the input adds a constant to the whole output."""
    if not isinstance(layer, _ConvNd):
        return True
    if isinstance(layer, _ConvTransposeNd):  # its outputs are sums of different weights
        single = all(size == 1 for size in (*layer.kernel_size, *layer.stride))
        return single and not any(layer.output_padding)
    if layer.padding_mode != "zeros" or layer.padding == "valid":
        return True
    if layer.padding == "same":
        return all(size == 1 for size in layer.kernel_size)
    return not any(layer.padding)


def _folded(layer: nn.Module, norm: nn.Module | None, axis: ChannelDim | None) -> nn.Module | None:
    """Return one layer that does both, or None if its weight is derived from others."""
    assert isinstance(layer, _ConvNd | nn.Linear)
    assert isinstance(norm, _BatchNorm)
    assert axis is not None
    weight = layer.weight.detach()
    scale, shift = (
        along_inputs(layer, numbers.repeat_interleave(axis.repeats)).to(weight.device)
        for numbers in scale_and_shift(norm)
    )
    bias = _sums(layer, weight.double() * shift)
    if layer.bias is not None:
        bias = bias + layer.bias.detach().double()
    rows = scale.expand(len(weight), *scale.shape[1:])
    return with_parameters(layer, scaled(weight, rows), bias.to(weight.dtype))


def _sums(layer: _ConvNd | nn.Linear, products: Tensor) -> Tensor:
    """Sum what each output channel adds up."""
    if not isinstance(layer, _ConvTransposeNd):
        return products.flatten(1).sum(1)
    by_group = products.flatten(2).sum(2).view(layer.groups, -1, products.shape[1])
    return by_group.sum(1).flatten()


def _remove(graph: MaseGraph, node: fx.Node, found: _Preceding) -> None:
    """Remove the norm before a layer, and record what the nodes after it take and give now."""
    source = data_input(found.norm)
    assert source is not None
    others = [other for other in found.norm.all_input_nodes if other is not source]
    sync.bypass(graph, found.norm, source)
    is_module = found.norm.op == "call_module"
    unused = [str(found.norm.target)] if is_module else drop_unread(graph, others)
    for reader in (*found.between, node):
        _take_data(reader, source)
        forget_statistics(reader, "args")
        if reader is not node:
            forget_statistics(reader, "results")
    sync.finish(graph, unused=unused)


def _take_data(reader: fx.Node, source: fx.Node) -> None:
    """Record that a no-op, a reshape or a layer takes, and but for a layer gives, other data."""
    data = mase(source).common.results.tensor("data_out_0").get("value")
    common = mase(reader).common
    entries = [common.args.tensor("data_in_0")]
    if not has_trait(common.mase_op, "weighted_sum"):
        entries.append(common.results.tensor("data_out_0"))
    for entry in entries:
        if "value" in entry and isinstance(data, torch.Tensor):
            entry["value"] = data.reshape(entry["shape"])
