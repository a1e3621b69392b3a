"""Quantise a graph: round operands of its nodes to number formats."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.passes.graph.transforms.quantize.quantize import (
        QUANTIZEABLE_OP,
        quantize_transform_pass,
    )
    from chop.passes.graph.transforms.quantize.quantized_funcs import quantized_func_map
    from chop.passes.graph.transforms.quantize.quantized_modules import quantized_module_map
    from chop.passes.graph.transforms.quantize.static import quantize_static_transform_pass
    from chop.passes.graph.transforms.quantize.summary import summarize_quantization_analysis_pass

__all__ = [
    "QUANTIZEABLE_OP",
    "quantize_static_transform_pass",
    "quantize_transform_pass",
    "quantized_func_map",
    "quantized_module_map",
    "summarize_quantization_analysis_pass",
]

__getattr__ = lazy.importer(__name__, __file__)
