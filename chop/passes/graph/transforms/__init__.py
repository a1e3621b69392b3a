"""Passes that change a graph."""

from chop.passes.graph.transforms.fusion import conv_bn_fusion_transform_pass
from chop.passes.graph.transforms.quantize import (
    quantize_transform_pass,
    summarize_quantization_analysis_pass,
)

__all__ = [
    "conv_bn_fusion_transform_pass",
    "quantize_transform_pass",
    "summarize_quantization_analysis_pass",
]
