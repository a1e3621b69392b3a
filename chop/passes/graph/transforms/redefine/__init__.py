"""Change the widths and depths of a network."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.passes.graph.transforms.redefine.batch_norm import reestimate_batch_norm
    from chop.passes.graph.transforms.redefine.redefine import (
        redefine_conv_transform_pass,
        redefine_linear_transform_pass,
        redefine_transform_pass,
    )
    from chop.passes.graph.transforms.redefine.space import repeatable_blocks, width_groups

__all__ = [
    "redefine_conv_transform_pass",
    "redefine_linear_transform_pass",
    "redefine_transform_pass",
    "reestimate_batch_norm",
    "repeatable_blocks",
    "width_groups",
]

__getattr__ = lazy.importer(__name__, __file__)
