"""Prune weights, activations and channels."""

from typing import TYPE_CHECKING

from chop import lazy
from chop.passes.graph.transforms.pruning import saved as saved  # it registers itself

if TYPE_CHECKING:
    from chop.passes.graph.transforms.pruning.activation import (
        activation_pruning_of,
        attach_activation_pruning,
        detach_activation_pruning,
    )
    from chop.passes.graph.transforms.pruning.masks import attach_mask, detach_mask, masks_of
    from chop.passes.graph.transforms.pruning.methods import METHODS
    from chop.passes.graph.transforms.pruning.plan import PRUNABLE_OP
    from chop.passes.graph.transforms.pruning.prune import prune_transform_pass
    from chop.passes.graph.transforms.pruning.prune_channels import prune_channels_transform_pass
    from chop.passes.graph.transforms.pruning.prune_detach_hook import (
        prune_detach_hook_transform_pass,
    )

__all__ = [
    "METHODS",
    "PRUNABLE_OP",
    "activation_pruning_of",
    "attach_activation_pruning",
    "attach_mask",
    "detach_activation_pruning",
    "detach_mask",
    "masks_of",
    "prune_channels_transform_pass",
    "prune_detach_hook_transform_pass",
    "prune_transform_pass",
]

__getattr__ = lazy.importer(__name__, __file__)
