"""Linear layers with ReLUs between: their steps are computed by one call of the C++ library."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.graph.tracer import HOOKS
from chop.numerics.fast.chain import ROUNDINGS, Chain, ChainLayer
from chop.numerics.learned import LearnsBits
from chop.training.learned.batches import MemberBatches
from chop.training.learned.members import Members
from chop.training.learned.options import FrontOptions
from chop.training.tasks import CLASSIFICATION, TrainingTask


class ChainGradients:
    """The gradients of all networks, without a graph of operations."""

    def __init__(self, chain: Chain, members: Members) -> None:
        self.chain, self.members = chain, members
        self.weight = members.skeleton.weights["ebops"]

    def __call__(self, index: Tensor, price: Tensor) -> Tensor:
        rows = zip(self.members.values.detach(), index, (self.weight * price).tolist(), strict=True)
        return torch.stack([self.chain.gradients(values, each, p) for values, each, p in rows])


def chain_gradients(
    members: Members, batches: MemberBatches, options: FrontOptions, task: TrainingTask
) -> ChainGradients | None:
    """Return how gradients are computed, or None for networks and runs of other kinds."""
    plain = members.device.type == "cpu" and not options.distill and not options.compile
    if not plain or task is not CLASSIFICATION or [*options.weights] != ["ebops"]:
        return None
    if any(map(_has_hooks, members.skeleton.network.modules())):
        return None
    layers = [*_layers(members.skeleton.network)]
    found = [_chain_layer(layer, members) for layer in layers]
    chosen = [layer for layer in found if layer is not None]
    if not chosen or len(chosen) < len(found) or not _suits(batches, chosen):
        return None
    own = {id(p) for layer in layers for p in layer.parameters()}
    if {id(p) for p in members.skeleton.network.parameters()} != own or not Chain.is_ready():
        return None
    split = batches.split
    chain = Chain(chosen, members.values.shape[1], split.x, split.y)
    return ChainGradients(chain, members)


def _suits(batches: MemberBatches, layers: list[ChainLayer]) -> bool:
    """Return whether samples are rows of numbers, and labels are classes of the network."""
    split = batches.split
    x, y = split.x, split.y
    if split.prepare is not None or not batches.is_plain or not isinstance(x, Tensor):
        return False
    if x.dtype != torch.float32 or y.dtype != torch.int64 or x.dim() != 2 or y.dim() != 1:
        return False
    fits = all(a.outputs == b.inputs for a, b in itertools.pairwise(layers))
    known = bool(0 <= y.min() <= y.max() < layers[-1].outputs)
    return fits and x.shape[1] == layers[0].inputs and known


def _layers(network: nn.Module) -> Iterator[Any]:
    """Give the linear layers of a network that has ReLUs between them and nothing else."""
    calls = [*_calls(network)]
    is_chain = len(calls) % 2 == 1 and all(type(call) is nn.ReLU for call in calls[1::2])
    linear = calls[::2]
    if is_chain and len({id(layer) for layer in linear}) == len(linear):
        yield from linear


def _calls(network: nn.Module) -> Iterator[nn.Module]:
    """Give the layers in the order of their calls; nothing if the network is not a chain."""
    if type(network).forward is nn.Sequential.forward:
        yield from network.children()
    if not isinstance(network, fx.GraphModule):
        return
    first, *others = network.graph.nodes
    each = zip([first, *others], others, strict=False)
    if any(node.all_input_nodes != [before] or node.kwargs for before, node in each):
        return
    if any(node.op != "call_module" or len(node.args) != 1 for node in others[:-1]):
        return
    yield from (network.get_submodule(str(node.target)) for node in others[:-1])


def _chain_layer(layer: Any, members: Members) -> ChainLayer | None:
    """Return where the values of a layer are in a row, or None if it does more than that."""
    if not isinstance(layer, nn.Linear) or not isinstance(layer, LearnsBits):
        return None
    formats = getattr(layer, "formats", {})
    if {*formats} - {"bias"} != {"data_in", "weight"} or not all(map(_learns, formats.values())):
        return None
    if len({fmt.rounding for fmt in formats.values()}) > 1:
        return None
    parameter_formats = [fmt for name, fmt in formats.items() if name != "data_in"]
    if any(fmt.granularity != "element" or not fmt.signed for fmt in parameter_formats):
        return None
    names = {id(p): name for name, p in members.skeleton.network.named_parameters()}
    starts = dict(zip(members.names, _starts(members.sizes), strict=True))
    parameters: dict[str, Any] = dict(layer.named_parameters())
    places = {name: starts.get(names[id(p)]) for name, p in parameters.items()}
    needed = ("weight", "data_in_integer_bits", "data_in_frac_bits", "weight_frac_bits")
    biases = () if layer.bias is None else ("bias", "bias_frac_bits")
    if {*places} != {*needed, *biases} or None in places.values():
        return None
    shared = parameters["data_in_frac_bits"].numel() == 1
    if not all(_fits(layer, name, p, shared) for name, p in parameters.items()):
        return None
    if formats["data_in"].sample_shape not in (None, (layer.in_features,)):
        return None
    at: dict[str, Any] = {"bias": -1, "bias_frac_bits": -1, **places}
    return ChainLayer(
        inputs=layer.in_features,
        outputs=layer.out_features,
        weight=at["weight"],
        bias=at["bias"],
        integer_bits=at["data_in_integer_bits"],
        frac_bits=at["data_in_frac_bits"],
        weight_bits=at["weight_frac_bits"],
        bias_bits=at["bias_frac_bits"],
        is_signed=formats["data_in"].signed,
        shares_bits=shared,
        rounding=ROUNDINGS.index(formats["data_in"].rounding),
    )


def _fits(layer: nn.Linear, name: str, parameter: Tensor, shared: bool) -> bool:
    """Return whether a parameter has as many numbers as the kernel takes from a row of values."""
    if name.startswith("data_in"):
        return parameter.numel() == (1 if shared else layer.in_features)
    sizes = (layer.out_features, layer.in_features)
    return tuple(parameter.shape) == (sizes if name.startswith("weight") else sizes[:1])


def _has_hooks(layer: nn.Module) -> bool:
    """Return whether a layer has hooks, such as those that prune activations."""
    return any(getattr(layer, name) for name in HOOKS)


def _learns(fmt: Any) -> bool:
    return "frac_bits" in fmt.trained_tensors and fmt.overflow == "saturate"


def _starts(sizes: list[int]) -> list[int]:
    return [sum(sizes[:k]) for k in range(len(sizes))]
