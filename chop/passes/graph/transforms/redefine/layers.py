"""Layers with other numbers of channels: newly initialised, or inheriting their weights."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from chop.passes.graph.transforms.pruning.masks import unmasked_class
from chop.passes.graph.transforms.pruning.methods import generator_for
from chop.passes.graph.transforms.pruning.shrink import Places, shrunk, sides_of


def inherited(layer: nn.Module, outs: Places, ins: Places, seed: int, target: str) -> nn.Module:
    """Return the layer with copied channels; consumers split weights so that sums stay the same.

    The copies of a channel share its weights unevenly, so that training can separate them.
    """
    new = _unshared(shrunk(layer, outs, ins), layer)
    dim = sides_of(layer).ins.get("weight")
    weight, old = new._parameters.get("weight"), layer._parameters.get("weight")
    if ins is None or dim is None or weight is None or old is None:
        return new
    # a grouped convolution's weight has the input channels of one group; all groups are alike
    read = [place for place in ins if place < old.shape[dim]]
    shape = [-1 if d == dim else 1 for d in range(weight.dim())]
    scale = _shares(read, generator_for(seed, target)).reshape(shape)
    weight.data.mul_(scale.to(weight.device, weight.dtype))
    return new


def _shares(ins: Sequence[int], generator: torch.Generator) -> Tensor:
    """A positive share for each copy; the shares of one channel sum to 1."""
    index = torch.tensor(ins)
    raw = 0.5 + torch.rand(len(ins), dtype=torch.double, generator=generator)
    totals = torch.zeros(int(index.max()) + 1, dtype=torch.double).index_add_(0, index, raw)
    return raw / totals[index]


def fresh(layer: nn.Module, outs: Places, ins: Places, seed: int, target: str) -> nn.Module:
    """Return the layer with other shapes and new weights, the same on any device."""
    new = _unshared(shrunk(layer, outs, ins), layer)
    reset(new, seed, target)
    return new


def reset(layer: nn.Module, seed: int, target: str) -> None:
    """Initialise a layer as its class does; masks and the global random state stay.

    A norm without parameters only resets its statistics, without random numbers.
    """
    if not [*layer.parameters()]:
        layer.reset_parameters()  # type: ignore[operator]
        return
    masked, device = type(layer), next(layer.parameters()).device
    layer.__class__ = unmasked_class(masked)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(zlib.crc32(f"{seed} {target}".encode()))
            layer.to("cpu")
            layer.reset_parameters()  # type: ignore[operator]
    finally:
        layer.__class__ = masked
    layer.to(device)


def _unshared(new: nn.Module, old: nn.Module) -> nn.Module:
    """Copy the tensors that `new` still shares with the layer it was made from."""
    for name, tensor in (new._parameters | new._buffers).items():
        if tensor is None or tensor is not {**old._parameters, **old._buffers}.get(name):
            continue
        copy = tensor.detach().clone()
        if name in new._buffers:
            new._buffers[name] = copy
        else:
            new._parameters[name] = nn.Parameter(copy, tensor.requires_grad)
    return new


def silence(layer: Any) -> None:
    """Make a layer or a norm return 0."""
    with torch.no_grad():
        for parameter in (layer.weight, layer.bias):
            if parameter is not None:
                parameter.zero_()


def can_pass_on(layer: Any) -> bool:
    """Return whether a layer can be the identity for some weights."""
    if isinstance(layer, nn.Linear):
        return layer.in_features == layer.out_features
    if not isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) or layer.groups != 1:
        return False
    same = layer.padding == "same" or all(
        isinstance(p, int) and 2 * p == d * (k - 1)
        for p, d, k in zip(layer.padding, layer.dilation, layer.kernel_size, strict=True)
    )
    odd = all(k % 2 for k in layer.kernel_size) and set(layer.stride) == {1}
    return same and odd and layer.in_channels == layer.out_channels


def pass_on(layer: Any) -> None:
    """Make a layer, or a norm in eval mode, the identity."""
    with torch.no_grad():
        if isinstance(layer, nn.Linear):
            nn.init.eye_(layer.weight)
        elif isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            nn.init.dirac_(layer.weight)
        else:
            layer.reset_parameters()
            if layer.weight is not None:
                layer.weight.fill_((1 + layer.eps) ** 0.5)
        if layer.bias is not None:
            layer.bias.zero_()
