"""Passes that change a graph."""

from chop.passes.graph.transforms.pruning import (
    prune_channels_transform_pass,
    prune_detach_hook_transform_pass,
    prune_transform_pass,
)
from chop.passes.graph.transforms.quantize import (
    quantize_transform_pass,
    summarize_quantization_analysis_pass,
)

__all__ = [
    "prune_channels_transform_pass",
    "prune_detach_hook_transform_pass",
    "prune_transform_pass",
    "quantize_transform_pass",
    "summarize_quantization_analysis_pass",
]
