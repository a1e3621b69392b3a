"""SmoothQuant (Xiao et al. 2023): outliers of activations move into the weights."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils import parametrize

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS, has_trait, is_named_in_table, module_op
from chop.options import PositiveInt, Share
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.transforms import metadata_sync as sync
from chop.passes.graph.transforms.fusion import LAYERS, along_outputs
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
    result_shape,
)
from chop.passes.graph.transforms.repair.layer_inputs import samples_for, watch_inputs
from chop.passes.graph.transforms.repair.layers import chosen_nodes
from chop.passes.select import By, select
from chop.registry import UnknownName
from chop.system.progress import progress_bar

logger = logging.getLogger(__name__)

NORMS = (_BatchNorm, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _InstanceNorm)
Reasons = dict[fx.Node, str]
MOST = 1e5  # the largest scale, and one over the smallest


@dataclass
class ScaledGroup:
    """A layer or norm, and the layers that read its channels, maybe behind homogeneous ops."""

    source: fx.Node
    axes: dict[fx.Node, ChannelDim] = field(default_factory=dict)  # of the source and ops behind
    readers: dict[fx.Node, ChannelDim] = field(default_factory=dict)


@graph_pass("smooth", "transform", needs=("common",))
def smooth_transform_pass(
    graph: MaseGraph,
    *,
    by: By = "name",
    nodes: Sequence[str] = (),
    alpha: Share = 0.5,
    input_generator: Any = None,
    num_samples: PositiveInt = 512,
) -> dict[str, Any]:
    """Move outliers of activations into the weights of the layers that read them (SmoothQuant).

    Input channel j of a linear layer or convolution is divided by s = max|x|^alpha /
    max|w|^(1 - alpha), over `num_samples` samples of `input_generator` and over the weights of all
    layers that read the channel, which are multiplied by s. The layer or norm that gives the
    channel, directly or through relu, leaky relu, pooling, dropout or flatten, is divided by s, so
    the network computes the same as before, up to rounding. Run it on the float graph, before
    calibration. `by` and `nodes` choose layers; by default all. A layer with inputs that no layer
    or norm gives alone is skipped, with the reason.
    """
    require_float("smooth", graph)
    groups, skipped = _chosen_groups(graph, by, nodes)
    batches = samples_for("smooth", graph, input_generator, num_samples)
    maxima = _input_maxima(graph, groups, batches)
    layers: dict[fx.Node, nn.Module] = {}
    scales = [_smoothed(group, maxima, alpha, layers) for group in groups]
    for node, new in layers.items():
        sync.exchange(graph, [node], new)
    for group, scale in zip(groups, scales, strict=True):
        _note_scales(group, scale)
    sync.finish(graph)
    described = {
        group.source.name: _described(group, maxima, scale)
        for group, scale in zip(groups, scales, strict=True)
    }
    smoothed = [reader.name for group in groups for reader in group.readers]
    return {"smoothed": smoothed, "groups": described, "skipped": skipped}


smooth_transform_pass.chooses(chosen_nodes)


def _is_transposed(layer: nn.Module) -> bool:
    """Return whether a layer is linear with the inputs of its weight first."""
    cls: Any = type(layer)
    spec = module_op(cls)
    return spec is not None and spec.name == "transposed_linear"


def _is_reader(layer: nn.Module | None) -> bool:
    return layer is not None and (isinstance(layer, LAYERS) or _is_transposed(layer))


def _is_scalable(layer: nn.Module | None) -> bool:
    return _is_reader(layer) or isinstance(layer, NORMS)


def _chosen_groups(
    graph: MaseGraph, by: By, nodes: Sequence[str]
) -> tuple[list[ScaledGroup], dict[str, str]]:
    """Return the groups with a chosen layer, and why other chosen layers are skipped."""
    try:
        named = select(graph, by, nodes)
    except (UnknownName, ValueError) as error:
        raise PassArgsError(str(error)) from None
    unfit = _unfit_layers(graph)
    found, ends = _groups(graph, unfit)
    group_of = {reader: group for group in found for reader in group.readers}
    wanted = named if nodes else [n for n in graph.nodes if _is_reader(mase(n).module)]
    skipped: dict[str, str] = {}
    for node in wanted:
        if node in group_of:
            continue
        reason = _why_not(node, unfit, ends)
        if nodes and by == "name":
            raise PassArgsError(f"node {node.name!r} {reason}")
        skipped[node.name] = reason
        logger.info("smooth skips %r: it %s", node.name, reason)
    chosen = [group for group in found if any(reader in wanted for reader in group.readers)]
    if not chosen:
        logger.warning("smooth finds no layer with inputs that a layer or norm before it can scale")
    return chosen, skipped


def _unfit_layers(graph: MaseGraph) -> Reasons:
    """Return the layers and norms with parameters that cannot be scaled, with the reason."""
    shared = shared_parameters(graph)
    reasons: Reasons = {}
    for layer, nodes in sync.calls(graph).items():
        if _is_scalable(layer):
            reason = _why_unfit(nodes, layer, shared)
            reasons |= {node: reason for node in nodes if reason is not None}
    return reasons


def _groups(graph: MaseGraph, unfit: Reasons) -> tuple[list[ScaledGroup], Reasons]:
    """Return all groups in the order of the graph, and why other layers and norms begin none."""
    groups: list[ScaledGroup] = []
    ends: Reasons = {}
    for node in graph.nodes:
        if node in unfit or not _is_scalable(mase(node).module):
            continue
        group = _group_from(node, unfit)
        if isinstance(group, ScaledGroup):
            groups.append(group)
        else:
            ends[node] = group
    return groups, ends


def _why_unfit(nodes: Sequence[fx.Node], layer: nn.Module, shared: set[int]) -> str | None:
    """Return why the parameters of a layer or norm cannot be scaled, or None."""
    if len(nodes) > 1 or any(id(parameter) in shared for parameter in layer.parameters()):
        return "has weights that are used more than once"
    if has_own_forward(nodes[0]) and not is_named_in_table(type(layer)):
        return "has a custom forward"
    if is_watched(layer):
        return "has hooks that observe what it takes or gives"
    if parametrize.is_parametrized(layer):
        return "computes its weight from other tensors"
    if layer._parameters.get("weight") is None:
        return "has no weight"
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm) and len(layer.normalized_shape) > 1:
        return "normalises several dimensions together"
    return None


def _group_from(source: fx.Node, unfit: Reasons) -> ScaledGroup | str:
    """Return the group that a layer or norm begins, or why it begins none."""
    first = _result_axis(source)
    if first is None:
        return "is called without a batch"
    group = ScaledGroup(source, {source: first})
    waiting = [source]
    while waiting:
        node = waiting.pop()
        for user in data_users(node):
            reason = _add(group, user, node, unfit)
            if reason is not None:
                return reason
            if user in group.axes:
                waiting.append(user)
    return group if group.readers else "gives its channels to no layer"


def _add(group: ScaledGroup, user: fx.Node, node: fx.Node, unfit: Reasons) -> str | None:
    """Add a node that reads scaled channels to the group; return why it cannot be added."""
    layer: Any = mase(user).module
    axis = group.axes[node]
    apart = f"gives its channels to {user.name!r}, which"
    if user.op == "output" or data_input(user) is not node or len(_reads(user, node)) > 1:
        return f"{apart} does not take them as its only input"
    if _is_reader(layer):
        if user in unfit:
            return f"{apart} {unfit[user]}"
        assert isinstance(layer, nn.Module)
        if not fits_input(user, layer, axis):
            return f"{apart} mixes them"
        group.readers[user] = axis
        return None
    op = mase(user).common.mase_op
    kept = has_trait(op, "homogeneous") or has_trait(op, "reshape")
    if not kept or has_own_forward(user) or is_watched(layer):
        return f"{apart} is {op}, not a layer or a homogeneous op"
    after = axis_after(user, axis)
    if after is None:
        return f"{apart} mixes them"
    group.axes[user] = after
    return None


def _reads(user: fx.Node, node: fx.Node) -> list[fx.Node]:
    """Return the tensors that a node reads, except those of the model, and sizes."""
    sources = [source for source in user.all_input_nodes if source.op != "get_attr"]
    return [source for source in sources if source is node or result_shape(source) is not None]


def _result_axis(node: fx.Node) -> ChannelDim | None:
    layer = mase(node).module
    assert layer is not None
    by_last = not isinstance(layer, NORMS) or isinstance(layer, nn.LayerNorm | nn.RMSNorm)
    return output_axis(node, layer) if by_last else ChannelDim(1)


def _why_not(node: fx.Node, unfit: Reasons, ends: Reasons) -> str:
    """Return why a chosen node is in no group."""
    if not _is_reader(mase(node).module):
        return f"is {mase(node).common.mase_op}; smooth works on linear layers and convolutions"
    if node in unfit:
        return unfit[node]
    origin = data_input(node)
    while origin is not None and _is_between(origin):
        origin = data_input(origin)
    if origin is None:
        return "has no layer or norm before it that could be scaled"
    reason = unfit.get(origin) or ends.get(origin)
    if reason is not None:
        return f"takes the channels of {origin.name!r}, which {reason}"
    return f"takes the result of {origin.name!r}, which is not a layer or norm with weights"


def _is_between(node: fx.Node) -> bool:
    op = mase(node).common.mase_op
    return op in OPS and (has_trait(op, "homogeneous") or has_trait(op, "reshape"))


Maxima = dict[fx.Node, Tensor]  # the largest magnitude of each input channel of a layer


def _input_maxima(
    graph: MaseGraph, groups: Sequence[ScaledGroup], batches: Sequence[Sequence[Any]]
) -> Maxima:
    """Return the largest magnitudes of the inputs of all readers, in one run over the data."""
    maxima: Maxima = {}

    def recorder(node: fx.Node, dim: int) -> Any:
        def record(x: Tensor) -> None:
            largest = x.detach().abs().movedim(dim, 0).flatten(1).amax(1).double()
            known = maxima.get(node)
            maxima[node] = largest if known is None else torch.maximum(known, largest)

        return record

    watched = {n: recorder(n, a.dim) for group in groups for n, a in group.readers.items()}
    for inputs in progress_bar(batches, desc="Smoothing") if watched else ():
        watch_inputs(graph, inputs, watched)
    for node, largest in maxima.items():
        if not bool(largest.isfinite().all()):
            raise PassArgsError(f"the inputs of node {node.name!r} are not finite; check the data")
    return maxima


def _smoothed(
    group: ScaledGroup, maxima: Maxima, alpha: float, layers: dict[fx.Node, nn.Module]
) -> Tensor:
    """Scale the layers of a group, those that `layers` has already; return the scales."""
    for node in (group.source, *group.readers):
        layers.setdefault(node, sync.own_copy(_module(node)))
    inputs = _per_channel(group, maxima)
    weights = [_by_channel(weight_maxima(layers[n]), axis) for n, axis in group.readers.items()]
    largest = torch.stack(weights).amax(0)
    scale = inputs**alpha / largest ** (1 - alpha)
    scale = torch.where((inputs > 0) & (largest > 0), scale, 1.0).clamp(1 / MOST, MOST)
    _scale_outputs(layers[group.source], 1 / scale)
    for node, axis in group.readers.items():
        _scale_inputs(layers[node], scale.repeat_interleave(axis.repeats))
    return scale


def _module(node: fx.Node) -> nn.Module:
    module = mase(node).module
    assert module is not None
    return module


def _per_channel(group: ScaledGroup, maxima: Maxima) -> Tensor:
    """Return the largest input of each channel among all readers."""
    found = [_by_channel(maxima[node], axis) for node, axis in group.readers.items()]
    return torch.stack(found).amax(0)


def _by_channel(numbers: Tensor, axis: ChannelDim) -> Tensor:
    return numbers.view(-1, axis.repeats).amax(1)


def weight_maxima(layer: nn.Module) -> Tensor:
    """Return the largest magnitude of the weights of each input channel."""
    weight: Any = layer._parameters["weight"]
    sizes: Tensor = weight.detach().double().abs()
    if _is_transposed(layer):
        return sizes.amax(1)
    sizes = sizes.flatten(2).amax(2) if sizes.ndim > 2 else sizes
    if getattr(layer, "transposed", False):  # [in, out / groups, …]
        return sizes.amax(1)
    groups: int = getattr(layer, "groups", 1)
    return sizes.view(groups, -1, sizes.shape[1]).amax(1).flatten()


def _scale_inputs(layer: Any, scale: Tensor) -> None:
    factor = scale.view(-1, 1) if _is_transposed(layer) else along_inputs(layer, scale)
    _multiply(layer, "weight", factor)


def _scale_outputs(layer: Any, scale: Tensor) -> None:
    plain = isinstance(layer, NORMS) or _is_transposed(layer)  # outputs are the last dimension
    _multiply(layer, "weight", scale if plain else along_outputs(layer, scale))
    _multiply(layer, "bias", scale)


def _multiply(layer: nn.Module, name: str, factor: Tensor) -> None:
    old = layer._parameters.get(name)
    if old is not None:
        new = (old.detach().double() * factor).to(old.dtype)
        layer.register_parameter(name, nn.Parameter(new, requires_grad=old.requires_grad))


def _note_scales(group: ScaledGroup, scale: Tensor) -> None:
    """Record the new data in a group, and forget the statistics of the old."""
    for node, axis in group.axes.items():
        divide_value(mase(node).common.results.get("data_out_0"), axis, scale)
        forget_statistics(node, "results")
        for user in data_users(node):
            divide_value(mase(user).common.args.get("data_in_0"), axis, scale)
            forget_statistics(user, "args")


def _described(group: ScaledGroup, maxima: Maxima, scale: Tensor) -> dict[str, Any]:
    """Return the layers of a group, and the largest input channel before and after.

    It is a multiple of the mean over the channels.
    """
    inputs = _per_channel(group, maxima)
    before, after = (_outlier(some) for some in (inputs, inputs / scale))
    return {"layers": [n.name for n in group.readers], "before": before, "after": after}


def _outlier(inputs: Tensor) -> float:
    mean = inputs.mean().item()
    return inputs.max().item() / mean if mean > 0 else 1.0
