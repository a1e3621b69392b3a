"""Pruning state of layers in a saved graph: masks, pruned inputs, movement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from chop.ir.graph.layer_extras import EXTRAS, Extra
from chop.passes.graph.transforms.pruning.masks import attach_mask, masks_of


def attach_masks(module: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Prune `module` by `masks` again."""
    for name, mask in masks.items():
        attach_mask(module, name, mask)


def activation_pruning_of(module: nn.Module) -> Mapping[str, Any]:
    """Return how a layer prunes its input; nothing if it does not."""
    from chop.passes.graph.transforms.pruning import activation

    return activation.activation_pruning_of(module) or {}


def attach_activation_pruning(module: nn.Module, options: Mapping[str, Any]) -> None:
    """Make a layer prune its input again."""
    from chop.passes.graph.transforms.pruning import activation

    loaded = module._modules.pop(activation.NAME, None)  # a submodule that is not called yet
    activation.attach_activation_pruning(module, **options)
    if loaded is not None:
        module._modules[activation.NAME] = loaded


def movement_of(module: nn.Module) -> Mapping[str, Any]:
    """Return whether a layer accumulates the movement of its weight; the sums are a buffer."""
    from chop.passes.graph.transforms.pruning import movement

    return {"followed": True} if movement.follows_movement(module) else {}


def resume_movement(module: nn.Module, options: Mapping[str, Any]) -> None:
    """Make a layer continue to accumulate the movement of its weight."""
    from chop.passes.graph.transforms.pruning import movement

    name = movement.lacks_scores(module)
    if name is not None:
        scores = movement.movement_name(name)
        raise ValueError(f"a layer with movement has no {scores!r} of its weight's shape")
    movement.resume_movement(module)


EXTRAS["masks"] = Extra(masks_of, attach_masks)
EXTRAS["activation_pruning"] = Extra(
    activation_pruning_of, attach_activation_pruning, hooks=("sparsify_input",)
)
EXTRAS["movement"] = Extra(movement_of, resume_movement, hooks=("follow_movement",))
