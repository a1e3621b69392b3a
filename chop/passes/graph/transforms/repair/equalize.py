"""Cross-layer equalisation (Nagel et al. 2019): neighbouring layers share their ranges."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Ge, Gt
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import has_trait
from chop.passes.base import graph_pass
from chop.passes.graph.transforms import metadata_sync as sync
from chop.passes.graph.transforms.fusion import (
    FORWARDS,
    LAYERS,
    along_outputs,
    scaled,
    with_parameters,
)
from chop.passes.graph.transforms.pruning.channel_atoms import shared_parameters
from chop.passes.graph.transforms.repair.channels import (
    ChannelDim,
    along_inputs,
    axis_after,
    data_input,
    data_users,
    divide_value,
    fits_input,
    forget_statistics,
    has_own_forward,
    is_watched,
    output_axis,
    require_float,
)
from chop.passes.graph.transforms.repair.fold_batch_norm import why_norms_stay
from chop.system.progress import progress_bar

logger = logging.getLogger(__name__)


@graph_pass("equalize", "transform", needs=("common",))
def equalize_transform_pass(
    graph: MaseGraph,
    *,
    iterations: Annotated[int, Ge(1)] = 100,
    tolerance: Annotated[float, Gt(0)] = 1e-3,
) -> dict[str, Any]:
    """Scale the channels between layers so that both layers have the same range in each channel.

    A pair is two linear layers or convolutions with nothing but positively homogeneous ops between
    them: relu, leaky relu, prelu, max and average pooling, dropout, identity, flatten. Channel i of
    the first is divided by s and multiplied by s in the second, s = sqrt(r1 * r2) / r2 with the
    largest magnitudes r1 and r2 of its weights, so the network computes the same as before, up to
    rounding. Pairs that share a layer influence each other: the pass goes over all pairs until no
    scale changes by more than `tolerance` (relative), at most `iterations` times. A channel without
    weights on one side stays as it is.

    The graph must be in float. Returned are the pairs with the least and the greatest range of
    their channels before and after, the iterations, and why other layers were left alone.
    """
    require_float("equalize", graph)
    pairs, skipped = _pairs(graph)
    layers = {pair.first: _Ranges(_layer_of(pair.first)) for pair in pairs}
    layers |= {pair.second: _Ranges(_layer_of(pair.second), pair.repeats) for pair in pairs}
    before = [_ranges(pair, layers) for pair in pairs]
    passed = _equalized(pairs, layers, iterations, tolerance) if pairs else 0
    for node, ranges in progress_bar(layers.items(), desc="Equalizing layers", disable=not layers):
        sync.exchange(graph, [node], ranges.scaled_layer())
    for pair in pairs:
        _note_scales(pair, layers[pair.first].outputs)
    sync.finish(graph)
    found = [
        pair.described(old, _ranges(pair, layers)) for pair, old in zip(pairs, before, strict=True)
    ]
    return {"pairs": found, "iterations": passed, "skipped": skipped}


def _layer_of(node: fx.Node) -> _ConvNd | nn.Linear:
    layer = mase(node).module
    assert isinstance(layer, _ConvNd | nn.Linear)
    return layer


class _Pair(NamedTuple):
    """Two layers, the nodes between them, and where the channels lie in each of their results."""

    first: fx.Node
    between: list[fx.Node]
    axes: list[ChannelDim]  # of the first layer and of the nodes between
    second: fx.Node

    @property
    def repeats(self) -> int:
        """How many inputs of the second layer are one channel of the first."""
        return self.axes[-1].repeats

    def described(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
        layers = [self.first.name, self.second.name]
        return {"layers": layers, "before": dict(before), "after": dict(after)}


def _pairs(graph: MaseGraph) -> tuple[list[_Pair], dict[str, str]]:
    """Find the pairs in the order of the graph; layers that begin none, with the reason."""
    unfit, norms = _unfit_layers(graph), why_norms_stay(graph)
    pairs: list[_Pair] = []
    skipped: dict[str, str] = {}
    last: list[str] = []
    for node in graph.nodes:
        if node.op == "call_module" and isinstance(mase(node).module, LAYERS):
            found = unfit.get(node) or _pair_from(node, unfit, norms)
            if isinstance(found, str):
                skipped[node.name] = found
                logger.info("equalize leaves %r alone: %s", node.name, found)
            elif found is not None:
                pairs.append(found)
            else:
                last.append(node.name)
    if not pairs:
        skipped |= dict.fromkeys(last, "no layer comes after it")
        reasons = [f"{name!r}: {reason}" for name, reason in skipped.items()]
        why = "; ".join(reasons) or "it has no linear layer or convolution"
        logger.warning("equalize changes nothing, as the graph has no pair of layers (%s)", why)
    return pairs, skipped


def _unfit_layers(graph: MaseGraph) -> dict[fx.Node, str]:
    """The layers with weights that cannot be scaled, with the reason."""
    shared, read = shared_parameters(graph), sync.read_modules(graph)
    reasons: dict[fx.Node, str] = {}
    for layer, nodes in sync.calls(graph).items():
        if not isinstance(layer, LAYERS):
            continue
        reason = _why_unfit(layer, shared, layer in read or len(nodes) > 1)
        reasons |= {node: reason for node in nodes if reason is not None}
    return reasons


def _why_unfit(layer: nn.Module, shared: set[int], is_read_again: bool) -> str | None:
    assert isinstance(layer, _ConvNd | nn.Linear)
    if is_read_again or any(id(parameter) in shared for parameter in layer.parameters()):
        return "its weights are used more than once"
    if type(layer).forward not in FORWARDS:
        return "it has a custom forward"
    if is_watched(layer):
        return "hooks observe what it takes or gives"
    weight, bias = layer.weight.detach(), layer.bias
    if not weight.is_floating_point() or not weight.isfinite().all() or not weight.numel():
        return "its weights are not finite real numbers"
    if with_parameters(layer, weight, None if bias is None else bias.detach()) is None:
        return "its weights cannot be set"
    return None


def _pair_from(
    node: fx.Node, unfit: Mapping[fx.Node, str], norms: Mapping[fx.Node, str | None]
) -> _Pair | str | None:
    """Return the pair that a layer begins, why it begins none, or None for the last layer."""
    between: list[fx.Node] = []
    axes = [output_axis(node, _layer_of(node))]
    last = node
    while axes[-1] is not None:
        users = data_users(last)
        if len(users) != 1:
            return "its result is used by several nodes"
        (user,) = users
        if user.op == "output":
            return None
        if isinstance(mase(user).module, LAYERS):
            if user in unfit:
                return f"{user.name!r} comes after it: {unfit[user]}"
            if not fits_input(user, _layer_of(user), axes[-1]):
                return f"{user.name!r} mixes its channels"
            return _Pair(node, between, [axis for axis in axes if axis], user)
        reason = _why_not_between(user, norms)
        if reason is not None or data_input(user) is not last:
            return reason or f"{user.name!r} comes after it and reads other data"
        between.append(user)
        axes.append(axis_after(user, axes[-1]))
        last = user
    return f"{last.name!r} mixes its channels" if between else "it is called without a batch"


def _why_not_between(node: fx.Node, norms: Mapping[fx.Node, str | None]) -> str | None:
    """Why a node may not stand between the layers of a pair; `norms` says why batch norms stay."""
    op = mase(node).common.mase_op
    if node in norms:
        reason = norms[node]
        advice = "run fold_batch_norm first" if reason is None else f"it cannot be folded: {reason}"
        return f"the batch norm {node.name!r} comes after it; {advice}"
    if has_trait(op, "weighted_sum"):
        return f"{node.name!r} comes after it: it is a function, not a layer"
    if not has_trait(op, "homogeneous") and not has_trait(op, "reshape"):
        return f"{node.name!r} comes after it: equalize does not carry scales through {op}"
    if has_own_forward(node):
        return f"{node.name!r} comes after it: it has a custom forward"
    if is_watched(mase(node).module):
        return f"hooks observe the result of {node.name!r} after it"
    return None


class _Ranges:
    """The ranges of a layer's channels, and the scales that they have got so far."""

    def __init__(self, layer: _ConvNd | nn.Linear, repeats: int = 1) -> None:
        """`repeats` inputs of a linear layer are one channel of the layer before it."""
        self.layer, self.repeats = layer, repeats
        self._sizes = _sizes(layer, repeats)
        groups, outputs, inputs = self._sizes.shape
        self.inputs = self._sizes.new_ones(groups * inputs, dtype=torch.float64)
        self.outputs = self._sizes.new_ones(groups * outputs, dtype=torch.float64)

    def of_outputs(self) -> Tensor:
        by_group = self.inputs.view(len(self._sizes), 1, -1).to(self._sizes.dtype)
        return (self._sizes * by_group).amax(2).flatten() / self.outputs

    def of_inputs(self) -> Tensor:
        by_group = self.outputs.view(len(self._sizes), -1, 1).to(self._sizes.dtype)
        return (self._sizes / by_group).amax(1).flatten() * self.inputs

    def least_scale(self) -> Tensor:
        """The least scale of each output with which its bias stays a number of its dtype."""
        bias = self.layer.bias
        if bias is None:
            return torch.zeros_like(self.outputs)
        return 2 * bias.detach().double().abs() / torch.finfo(bias.dtype).max

    def scaled_layer(self) -> nn.Module:
        """Return a copy of the layer with the scales in its parameters, rounded once."""
        weight, bias = self.layer.weight.detach(), self.layer.bias
        if bias is not None:
            bias = (bias.detach().double() / self.outputs).to(bias.dtype)
        inputs = along_inputs(self.layer, self.inputs.repeat_interleave(self.repeats))
        factor = inputs / along_outputs(self.layer, self.outputs)
        factor = factor.expand(len(weight), *factor.shape[1:])
        new = with_parameters(self.layer, scaled(weight, factor), bias)
        assert new is not None, "layers with weights that cannot be set are in no pair"
        return new


def _sizes(layer: _ConvNd | nn.Linear, repeats: int) -> Tensor:
    """The magnitudes of the weights as [groups, outputs, inputs]: the largest of each kernel.

    Of `repeats` inputs of a linear layer only the largest is kept as well.
    """
    weight = layer.weight.detach().abs()
    weight = weight if weight.dtype == torch.float64 else weight.float()
    groups = getattr(layer, "groups", 1)
    kernels = weight.reshape(groups, -1, weight.shape[1] // repeats, weight[0, 0].numel() * repeats)
    sizes = kernels.amax(3)
    return sizes.transpose(1, 2) if isinstance(layer, _ConvTransposeNd) else sizes


def _equalized(
    pairs: list[_Pair], layers: Mapping[fx.Node, _Ranges], iterations: int, tolerance: float
) -> int:
    """Find the scales of all pairs; return how often all pairs were visited."""
    for iteration in range(1, iterations + 1):
        changes = [_equalize(layers[pair.first], layers[pair.second]) for pair in pairs]
        if max(changes) <= tolerance:
            return iteration
    logger.warning(
        "equalize stopped after %d iterations, when scales still changed by %.1g; "
        "give more iterations or a larger tolerance",
        iterations, max(changes),
    )  # fmt: skip
    return iterations


def _equalize(first: _Ranges, second: _Ranges) -> float:
    """Give both layers of a pair the same range in each channel; return the relative change."""
    own, other = first.of_outputs(), second.of_inputs()
    scale = (own / other).sqrt()
    scale = torch.where((own > 0) & (other > 0), scale, 1.0)
    scale = scale.maximum(first.least_scale() / first.outputs)
    first.outputs *= scale
    second.inputs *= scale
    return float((scale - 1).abs().max())


def _ranges(pair: _Pair, layers: Mapping[fx.Node, _Ranges]) -> dict[str, list[float]]:
    """The least and the greatest range of the channels, as each layer of a pair has them."""
    first, second = layers[pair.first].of_outputs(), layers[pair.second].of_inputs()
    return {
        node.name: [float(ranges.min()), float(ranges.max())]
        for node, ranges in ((pair.first, first), (pair.second, second))
    }


def _note_scales(pair: _Pair, scale: Tensor) -> None:
    """Record the new data between two layers, and forget the statistics of the old."""
    for node, axis in zip((pair.first, *pair.between), pair.axes, strict=True):
        (user,) = data_users(node)
        results, args = mase(node).common.results, mase(user).common.args
        for entry in (results.get("data_out_0"), args.get("data_in_0")):
            divide_value(entry, axis, scale)
        forget_statistics(node, "results")
        forget_statistics(user, "args")
