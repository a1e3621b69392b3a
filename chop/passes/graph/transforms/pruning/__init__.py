"""Let a network compute with fewer numbers."""

from chop.passes.graph.transforms.pruning.masks import attach_mask, detach_mask, masks_of

__all__ = ["attach_mask", "detach_mask", "masks_of"]
