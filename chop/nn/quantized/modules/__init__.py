"""Quantized layers, at the import path of newer scripts; they are defined by the quantize pass."""

from chop.passes.graph.transforms.quantize.quantized_modules import (
    LAYERS,
    Quantized,
    quantized_module_map,
    variant,
)
from chop.passes.graph.transforms.quantize.quantized_modules import __getattr__ as __getattr__

__all__ = ["LAYERS", "Quantized", "quantized_module_map", "variant"]
