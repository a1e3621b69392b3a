"""Fold batch norms into the preceding layers."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils import parametrize

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS, ops_with
from chop.passes.base import graph_pass
from chop.passes.graph.describe.nodes import fetch_attr
from chop.passes.graph.transforms import metadata_sync as sync
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized

logger = logging.getLogger(__name__)

LAYERS = tuple(cls for op in ops_with("weighted_sum") for cls in OPS[op].modules)
FORWARDS = {cls.forward for cls in LAYERS}
NORM_FORWARDS = {_BatchNorm.forward, nn.SyncBatchNorm.forward}

NORM_SIGNATURE = inspect.signature(F.batch_norm)
TENSORS = ("running_mean", "running_var", "weight", "bias")
IN_CACHE = 2**15  # numbers of eight bytes

Pairs = list[tuple[fx.Node, fx.Node]]  # a layer's node, and that of the norm after it


@graph_pass("conv_bn_fusion", "transform", needs=("common",))
def conv_bn_fusion_transform_pass(graph: MaseGraph) -> dict[str, Any]:
    """Fold batch norms, as they act in eval mode, into the preceding convolution or linear layer.

    Afterwards the layer alone computes what both computed in eval mode, up to the rounding of its
    dtype; in train mode nothing is normalised any more. A pair that cannot be fused stays, with a
    warning that gives the reason.
    """
    folded, skipped = fold_following_norms(graph, sync.calls(graph).items())
    return {"fused": len(folded), "skipped": skipped}


def fold_following_norms(
    graph: MaseGraph, calls: Iterable[tuple[nn.Module, list[fx.Node]]]
) -> tuple[list[str], dict[str, str]]:
    """Fold the batch norms after these layers; return their names, and why others stay."""
    fused: Pairs = []
    skipped: dict[str, str] = {}
    read = sync.read_modules(graph)
    for layer, nodes in calls:
        pairs = list(followed_by_norms(graph, layer, nodes))
        if not pairs:
            continue
        reason = why_not_fused(graph, layer, nodes, pairs, read)
        new = None if reason else _fused(layer, norm_of(graph, pairs[0][1]))
        if new is None:
            skipped[nodes[0].name] = warn_of_skipped(nodes[0], reason)
            continue
        sync.exchange(graph, nodes, new)
        fused += pairs
    unused: list[str] = []
    names = [norm.name for _, norm in fused]
    for node, norm in fused:
        read_by_norm = [source for source in norm.all_input_nodes if source is not node]
        sync.take_results(node, norm)
        sync.bypass(graph, norm, node)
        unused += (
            [str(norm.target)] if norm.op == "call_module" else drop_unread(graph, read_by_norm)
        )
    sync.finish(graph, unused=unused)
    return names, skipped


def warn_of_skipped(node: fx.Node, reason: str | None) -> str:
    """Log why a layer keeps its batch norm; return the warning."""
    warning = f"{reason or 'Weights cannot be set'}. Skipped!"
    logger.warning("%s (node %r)", warning, node.name)
    return warning


def drop_unread(graph: MaseGraph, sources: list[fx.Node]) -> list[str]:
    """Erase nodes that only a removed function read; return the modules that they called."""
    owners = []
    for source in sources:
        if source.users:
            continue
        graph.fx_graph.erase_node(source)
        owner, _, name = str(source.target).rpartition(".")
        still_read = any(node.target == source.target for node in graph.nodes)
        if source.op == "call_module":  # it reports whether the model is in train mode
            owners.append(str(source.target))
        elif owner:
            owners.append(owner)
        elif source.op == "get_attr" and not still_read:
            delattr(graph.model, name)
    return owners


def norm_of(graph: MaseGraph, node: fx.Node) -> nn.Module | None:
    """The eval-mode batch norm of a node; None for F.batch_norm on tensors not the model's."""
    if node.op == "call_module":
        return graph.modules[str(node.target)]
    arguments = NORM_SIGNATURE.bind(*node.args, **node.kwargs).arguments
    tensors: dict[str, Any] = {name: arguments.get(name) for name in TENSORS}
    read = [t for t in tensors.values() if t is not None]
    if not all(isinstance(t, fx.Node) and t.op == "get_attr" for t in read):
        return None
    values = {name: t and fetch_attr(graph.model, str(t.target)) for name, t in tensors.items()}
    if arguments.get("training") is True or values["running_mean"] is None:
        return None  # it normalises by the statistics of each batch
    norm = nn.BatchNorm1d(len(values["running_mean"]), eps=arguments.get("eps", 1e-5), affine=False)
    norm.running_mean, norm.running_var = values["running_mean"], values["running_var"]
    for name in ("weight", "bias"):
        if values[name] is not None:
            norm.register_parameter(name, nn.Parameter(values[name].detach(), requires_grad=False))
    return norm


def is_norm(graph: MaseGraph, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(graph.modules[str(node.target)], _BatchNorm)
    return node.op == "call_function" and node.target is F.batch_norm


def followed_by_norms(
    graph: MaseGraph, layer: nn.Module, nodes: list[fx.Node]
) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Yield the calls of a layer that a batch norm follows, each with its norm's node."""
    if not isinstance(layer, LAYERS):
        return
    yield from ((node, user) for node in nodes for user in node.users if is_norm(graph, user))


def why_not_fused(
    graph: MaseGraph, layer: nn.Module, nodes: list[fx.Node], pairs: Pairs, read: set[nn.Module]
) -> str | None:
    """Why a layer and the norms after it cannot be fused, or None if they can."""
    kind = kind_of(layer)
    norms = {norm_of(graph, norm) for _, norm in pairs}
    if any(len(node.users) > 1 for node, _ in pairs):
        return f"{kind} output used by other nodes"
    if len(pairs) < len(nodes) or len(norms) > 1:
        return f"{kind} called again without the same batch norm after it"
    (norm,) = norms
    reason = why_not_one_layer(layer, norm, read)
    if reason is not None:
        return reason
    assert isinstance(norm, _BatchNorm)
    if layer._forward_hooks or norm._forward_hooks or norm._forward_pre_hooks:
        return f"Hooks observe the result between {kind.lower()} and batch norm"
    if any(not _by_channel(node, layer, norm) for node, _ in pairs):
        return f"{kind} channels are not what the batch norm normalises"
    return None


def kind_of(layer: nn.Module) -> str:
    return "Linear" if isinstance(layer, nn.Linear) else "Conv"


def why_not_one_layer(layer: nn.Module, norm: nn.Module | None, read: set[nn.Module]) -> str | None:
    """Why a layer cannot take a batch norm in, wherever it stands, or None if it can."""
    kind = kind_of(layer)
    if norm is None:
        return "F.batch_norm uses batch statistics, or tensors that are not the model's"
    assert isinstance(norm, _BatchNorm)
    if norm.running_mean is None or norm.running_var is None:
        return "Batchnorm not tracking stats"
    if isinstance(layer, Quantized) or isinstance(norm, Quantized):
        return f"{kind} or batch norm quantised already: fuse first, then quantise"
    if type(layer).forward not in FORWARDS or type(norm).forward not in NORM_FORWARDS:
        return f"{kind} or batch norm with a custom forward"
    return f"{kind} weights read elsewhere in the graph" if layer in read else None


def _by_channel(node: fx.Node, layer: nn.Module, norm: _BatchNorm) -> bool:
    """Whether the norm's channels, which lie in dimension 1, are those of the layer."""
    shape = mase(node).common.results.tensor("data_out_0").shape
    rank = layer.weight.ndim if isinstance(layer, _ConvNd) else 2
    return len(shape) == rank and shape[1] == norm.num_features


def _fused(layer: nn.Module, norm: nn.Module | None) -> nn.Module | None:
    """Return one layer that does both, or None if its weight is derived from others."""
    assert isinstance(layer, _ConvNd | nn.Linear)
    assert isinstance(norm, _BatchNorm)
    return with_parameters(layer, *fused_parameters(layer, norm))


def with_parameters(
    layer: _ConvNd | nn.Linear, weight: Tensor, bias: Tensor | None
) -> nn.Module | None:
    """Return a copy with these parameters, or None if its weight is derived from others."""
    if not parametrize.is_parametrized(layer) and "weight" not in layer._parameters:
        return None  # a hook computes the weight before each call
    if parametrize.is_parametrized(layer, "bias"):
        return None
    new = sync.own_copy(layer)
    trainable = layer.weight.requires_grad
    had = layer.bias.requires_grad if layer.bias is not None else trainable
    if bias is not None:
        new.register_parameter("bias", nn.Parameter(bias, requires_grad=had))
    if not parametrize.is_parametrized(layer, "weight"):
        new.register_parameter("weight", nn.Parameter(weight, requires_grad=trainable))
        return new
    return new if _set_parametrized(new, weight) else None


def _set_parametrized(layer: Any, weight: Tensor) -> bool:
    """Set the weight of a parametrized layer if its parametrizations, such as masks, allow it."""
    layer.parametrizations = copy.deepcopy(layer.parametrizations)
    try:
        layer.weight = weight
    except (RuntimeError, NotImplementedError):
        return False
    return torch.equal(layer.weight, weight)


def fused_parameters(layer: _ConvNd | nn.Linear, norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Weight and bias of `norm(layer(x))` in eval mode, computed in float64 and rounded once."""
    scale, shift = scale_and_shift(norm)
    if layer.bias is not None:
        shift = shift + layer.bias.detach().double() * scale
    return scaled(layer.weight.detach(), along_outputs(layer, scale)), shift.to(layer.weight.dtype)


def scale_and_shift(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Return what a batch norm multiplies each channel by in eval mode, and adds, in float64."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var.detach().double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.detach().double()
    shift = -norm.running_mean.detach().double() * scale
    return scale, shift if norm.bias is None else shift + norm.bias.detach().double()


def scaled(weight: Tensor, scale: Tensor) -> Tensor:
    """Return weight · scale in float64, computed in blocks of rows that fit the cache."""
    result = torch.empty_like(weight)
    rows = max(1, IN_CACHE // max(1, weight[:1].numel()))
    buffer = weight.new_empty((min(rows, len(weight)), *weight.shape[1:]), dtype=torch.float64)
    for start in range(0, len(weight), rows):
        some = slice(start, start + rows)
        part = buffer[: len(weight[some])].copy_(weight[some]).mul_(scale[some])
        result[some].copy_(part)
    return result


def along_outputs(layer: _ConvNd | nn.Linear, scale: Tensor) -> Tensor:
    """Reshape one number per output channel so that it multiplies the weight."""
    rest = [1] * (layer.weight.ndim - 2)
    if not isinstance(layer, _ConvTransposeNd):
        return scale.view(-1, 1, *rest)
    # [in, out / groups, …]: rows of the same group share their output channels
    rows = scale.view(layer.groups, -1).repeat_interleave(layer.in_channels // layer.groups, 0)
    return rows.view(layer.in_channels, -1, *rest)
