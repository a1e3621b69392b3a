"""Masks of pruned layers, as a saved graph carries them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from chop.ir.graph.saving import EXTRAS, Extra

HOME = "chop.passes.graph.transforms.pruning"


def _masks() -> Any:
    """The module that knows masks; None where there is none."""
    if importlib.util.find_spec(HOME) is None:
        return None
    return importlib.import_module(f"{HOME}.masks")


def read_masks(module: nn.Module) -> dict[str, Tensor]:
    """Mask by name of the tensor that it prunes."""
    masks = _masks()
    return dict(masks.masks_of(module)) if masks is not None else {}


def attach_masks(module: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Prune `module` by `masks` again."""
    home = _masks()
    if home is None:
        raise ValueError("the graph is pruned, and this MASE has no pruning")
    for name, mask in masks.items():
        home.attach_mask(module, name, mask)


EXTRAS["masks"] = Extra(read_masks, attach_masks)
