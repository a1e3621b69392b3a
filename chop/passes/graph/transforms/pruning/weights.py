"""The weights of a layer that can be pruned: one, or several as in attention and recurrence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from chop.ir.ops import module_op
from chop.passes.graph.describe.formats import formatted_parameters
from chop.passes.graph.transforms.pruning.masks import masks_of


@dataclass(frozen=True)
class LayerWeight:
    """One weight of the layer that a node calls; its name is dotted, as `out_proj.weight`."""

    node: fx.Node
    name: str

    @property
    def target(self) -> str:
        """The name of the weight in the model; of a layer with one weight, that of the layer."""
        layer = str(self.node.target)
        return layer if self.name == "weight" else f"{layer}.{self.name}"

    @property
    def last(self) -> str:
        """The name of the parameter in the module that holds it."""
        return self.name.rpartition(".")[2]

    def holder(self, layer: nn.Module) -> nn.Module:
        """Return the module that holds the parameter: the layer, or a part of it."""
        return layer.get_submodule(self.name.rpartition(".")[0])


def weights_of_layer(layer: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of a layer of products, by name; {} for any other layer.

    The main parameter of a parametrized weight stands for it.
    """
    cls: Any = type(layer)
    op = module_op(cls)
    traits = op.traits if op is not None else frozenset()
    known = formatted_parameters(layer)
    if "weighted_sum" in traits:
        return {name: p for name, p in known.items() if name == "weight"}
    if "inner_products" not in traits:
        return {}
    return {name: p for name, p in known.items() if "weight" in name.rpartition(".")[2]}


def weight_names(layer: nn.Module) -> list[str]:
    """Return the names of the weights of a layer that can be pruned; [] for any other layer."""
    plain = dict(layer.named_parameters())  # what is parametrized has another name there
    return [name for name in weights_of_layer(layer) if name in plain]


def weight_count(layer: nn.Module) -> int:
    """Return the number of elements of the weights of a layer that can be pruned."""
    names = weight_names(layer)
    return sum(p.numel() for name, p in layer.named_parameters() if name in names)


def layer_masks(layer: nn.Module) -> dict[str, Tensor]:
    """Return the masks of a layer and of its parts, by the dotted names of the parameters."""
    return {
        f"{part}.{name}" if part else name: mask
        for part, module in layer.named_modules()
        for name, mask in masks_of(module).items()
    }
