"""Layers with fewer channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from chop.passes.graph.describe.formats import FormattedLayer
from chop.passes.graph.transforms.pruning.masks import mask_name, renewed
from chop.passes.graph.transforms.pruning.movement import movement_name

Places = Sequence[int] | None  # the old position of each new one along a dimension; None: all


@dataclass(frozen=True)
class Sides:
    """The channel dimension of each tensor of a layer, and the attribute that counts channels."""

    outs: Mapping[str, int]
    ins: Mapping[str, int] = field(default_factory=dict)
    out_counts: tuple[str, ...] = ()
    in_counts: tuple[str, ...] = ()


CONV = Sides({"weight": 0, "bias": 0}, {"weight": 1}, ("out_channels",), ("in_channels",))
# each filter of a depthwise convolution reads one channel
DEPTHWISE = Sides({"weight": 0, "bias": 0}, {}, ("out_channels",), ("in_channels", "groups"))
DEPTHWISE_TRANSPOSED = replace(DEPTHWISE, outs={"bias": 0}, ins={"weight": 0})
TRANSPOSED = Sides({"weight": 1, "bias": 0}, {"weight": 0}, ("out_channels",), ("in_channels",))
LINEAR = Sides({"weight": 0, "bias": 0}, {"weight": 1}, ("out_features",), ("in_features",))
STATISTICS = ("weight", "bias", "running_mean", "running_var")
NORM = Sides(dict.fromkeys(STATISTICS, 0), out_counts=("num_features",))
GROUP_NORM = Sides({"weight": 0, "bias": 0}, out_counts=("num_channels",))
PRELU = Sides({"weight": 0}, out_counts=("num_parameters",))


def sides_of(layer: nn.Module) -> Sides:
    """The input and output sides of a layer."""
    if isinstance(layer, _ConvNd) and layer.groups == layer.in_channels > 1:
        return DEPTHWISE_TRANSPOSED if layer.transposed else DEPTHWISE
    kinds: tuple[tuple[Any, Sides], ...] = (
        (_ConvTransposeNd, TRANSPOSED),
        (_ConvNd, CONV),
        (nn.Linear, LINEAR),
        (_NormBase, NORM),
        (nn.GroupNorm, GROUP_NORM),
        (nn.PReLU, PRELU),
    )
    return next(sides for cls, sides in kinds if isinstance(layer, cls))


def shrunk(layer: nn.Module, outs: Places = None, ins: Places = None) -> nn.Module:
    """Return the layer with only these output and input channels; None keeps all.

    Parameters are new tensors, masks are cut with them, and the given layer stays unchanged.
    """
    new, sides = renewed(layer), sides_of(layer)
    if isinstance(layer, nn.GroupNorm) and outs is not None:  # it loses whole groups
        vars(new)["num_groups"] = len(outs) // (layer.num_channels // layer.num_groups)
    for kept, places, counts in (
        (outs, sides.outs, sides.out_counts),
        (ins, sides.ins, sides.in_counts),
    ):
        if kept is None:
            continue
        for name, dim in places.items():
            for each in (name, mask_name(name), movement_name(name)):
                cut_tensor(new, each, dim, kept)
            if isinstance(new, FormattedLayer):
                new.cut_tensors(name, dim, kept)
        for count in counts:
            setattr(new, count, len(kept))
    if isinstance(new, FormattedLayer):
        inputs = ins if sides.ins or sides.in_counts else outs  # a norm has the same channels
        for operand, kept in (("data_in", inputs), ("data_out", outs)):
            if kept is not None:
                new.cut_tensors(operand, None, kept)
    if "_kept" in vars(new):
        vars(new)["_kept"] = {}  # rounded weights of the old shape
    return new


def cut_tensor(layer: nn.Module, name: str, dim: int, kept: Sequence[int]) -> None:
    """Keep these positions along a dimension of a parameter or buffer, if the layer has it."""
    parameter, buffer = layer._parameters.get(name), layer._buffers.get(name)
    if parameter is not None:
        cut = nn.Parameter(_selected(parameter, dim, kept), parameter.requires_grad)
        layer._parameters[name] = cut
    elif buffer is not None:
        layer._buffers[name] = _selected(buffer, dim, kept)


def _selected(tensor: Tensor, dim: int, kept: Sequence[int]) -> Tensor:
    # a grouped convolution's weight has the input channels of one group; all groups are alike
    places = [place for place in kept if place < tensor.shape[dim]]
    index = torch.tensor(places, dtype=torch.long, device=tensor.device)
    return tensor.detach().index_select(dim, index)
