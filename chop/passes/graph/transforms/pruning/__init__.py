"""Prune weights, activations and channels."""

from chop.passes.graph.transforms.pruning import saved as saved  # it registers itself
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
from chop.passes.graph.transforms.pruning.prune_detach_hook import prune_detach_hook_transform_pass

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
