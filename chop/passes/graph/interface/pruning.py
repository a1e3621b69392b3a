"""Pruning state of layers in a saved graph: masks, pruned inputs, movement."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from chop.ir.graph.saved_layers import EXTRAS, Extra

HOME = "chop.passes.graph.transforms.pruning"


def _home(part: str) -> Any:
    """Return a module of the pruning passes, or None if it does not exist."""
    if importlib.util.find_spec(HOME) is None:
        return None
    return importlib.import_module(f"{HOME}.{part}")


def _needed(part: str) -> Any:
    home = _home(part)
    if home is None:
        raise ValueError("the graph is pruned, but this version of MASE has no pruning")
    return home


def read_masks(module: nn.Module) -> dict[str, Tensor]:
    """Return the masks of a module by the name of the masked tensor."""
    home = _home("masks")
    return dict(home.masks_of(module)) if home is not None else {}


def attach_masks(module: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Prune `module` by `masks` again."""
    home = _needed("masks")
    for name, mask in masks.items():
        home.attach_mask(module, name, mask)


def read_activation_pruning(module: nn.Module) -> dict[str, Any]:
    """Return the options with which a layer prunes its input; {} if it does not."""
    home = _home("activation")
    return (home.activation_pruning_of(module) or {}) if home is not None else {}


def attach_activation_pruning(module: nn.Module, options: Mapping[str, Any]) -> None:
    """Make a layer prune its input again."""
    home = _needed("activation")
    loaded = module._modules.pop(home.NAME, None)  # a submodule that is not called yet
    home.attach_activation_pruning(module, **options)
    if loaded is not None:
        module._modules[home.NAME] = loaded


def read_movement(module: nn.Module) -> dict[str, Any]:
    """Return whether a layer accumulates the movement of its weight; the sums are a buffer."""
    home = _home("movement")
    return {"followed": True} if home is not None and home.follows_movement(module) else {}


def resume_movement(module: nn.Module, options: Mapping[str, Any]) -> None:
    """Make a layer continue to accumulate the movement of its weight."""
    home = _needed("movement")
    scores, weight = module._buffers.get(home.MOVEMENT), module._parameters.get("weight")
    if scores is None or weight is None or scores.shape != weight.shape:
        raise ValueError(f"a layer with movement has no {home.MOVEMENT!r} of its weight's shape")
    home.resume_movement(module)


EXTRAS["masks"] = Extra(read_masks, attach_masks)
EXTRAS["activation_pruning"] = Extra(
    read_activation_pruning, attach_activation_pruning, hooks=("sparsify_input",)
)
EXTRAS["movement"] = Extra(read_movement, resume_movement, hooks=("follow_movement",))
