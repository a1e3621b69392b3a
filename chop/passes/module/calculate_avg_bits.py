"""Bits per weight of a model's layers."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.module.base import module_pass

logger = logging.getLogger(__name__)

WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@module_pass("calculate_avg_bits", "analysis")
def calculate_avg_bits_module_analysis_pass(
    module: nn.Module, *, quantized_only: bool = False
) -> tuple[nn.Module, dict[str, Any]]:
    """Average bits per weight of linear and convolutional layers.

    Layers in float, and bypassed ones, count with the bits of their dtype;
    `quantized_only` leaves them out.
    """
    bits = count = 0.0
    layers: dict[str, float] = {}
    for name, layer in module.named_modules():
        if not isinstance(layer, WEIGHTED):
            continue
        fmt = layer.formats.get("weight") if isinstance(layer, Quantized) else None
        if fmt is None and quantized_only:
            continue
        weight = layer.weight
        shape = list(weight.shape)
        layers[name] = fmt.average_bits(shape) if fmt else 8.0 * weight.element_size()
        bits += layers[name] * weight.numel()
        count += weight.numel()
    if not count:
        logger.warning("No quantized layers found in the model, set average_bitwidth to 32")
    return module, {"average_bitwidth": bits / count if count else 32.0, "layers": layers}
