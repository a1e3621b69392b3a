"""Bits per weight of a model's layers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch import Tensor, nn

from chop.ir.parametrized import TABLE
from chop.passes.graph.describe.formats import format_tensor_ids, formatted_parameters
from chop.passes.graph.transforms.pruning.masks import masks_of
from chop.passes.graph.transforms.pruning.weights import weights_of_layer
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.module.base import module_pass

logger = logging.getLogger(__name__)

INNER = (nn.MultiheadAttention,)  # layers with parts that hold their weights


@module_pass("calculate_avg_bits", "analysis")
def calculate_avg_bits_module_analysis_pass(
    module: nn.Module,
    *,
    quantized_only: bool = False,
    count: Literal["all", "weights"] = "all",
) -> tuple[nn.Module, dict[str, Any]]:
    """Average bits per number of all parameters and buffers; `layers` has the bits of weights.

    What is in float, bypassed layers included, counts with the bits of its dtype. `count` =
    "weights" averages the weights of layers alone, as the labs do; `quantized_only` leaves out
    those in float.
    """
    rounded = rounded_parameters(module)
    bits = elements = 0.0
    layers: dict[str, float] = {}
    for name, weights in weights_of_layers(module).items():
        widths = {id(p): rounded.get(id(p)) for p in weights}
        if quantized_only and None in widths.values():
            continue
        total, size = _sum(weights, rounded)
        layers[name] = total / size if size else 32.0
        bits, elements = bits + total, elements + size
    if count == "all" and not quantized_only:
        bits, elements = _sum(all_tensors(module), rounded)
    if not elements:
        logger.warning("No quantized layers found in the model, set average_bitwidth to 32")
    return module, {"average_bitwidth": bits / elements if elements else 32.0, "layers": layers}


def rounded_parameters(module: nn.Module) -> dict[int, float]:
    """Return the bits per element of parameters that have a format, by identity."""
    rounded = {}
    for layer in module.modules():
        if not isinstance(layer, Quantized):
            continue
        for name, p in formatted_parameters(layer).items():
            fmt = layer.formats.get(layer.operand_of(name))
            if fmt is not None and TABLE not in name:  # other parameters of a norm stay in float
                rounded[id(p)] = layer.counted_format(name, fmt).average_bits(list(p.shape))
    return rounded


def weights_of_layers(module: nn.Module) -> dict[str, list[Tensor]]:
    """Return the weights of linear, convolutional, attention and recurrent layers, by layer."""
    inner = {id(part) for m in module.modules() if isinstance(m, INNER) for part in m.children()}
    return {
        name: [*weights.values()]
        for name, layer in module.named_modules()
        if id(layer) not in inner and (weights := weights_of_layer(layer))
    }


def all_tensors(module: nn.Module) -> Iterable[Tensor]:
    """Return all parameters and buffers, except for masks of pruning and scales of formats."""
    masks = {id(mask) for layer in module.modules() for mask in masks_of(layer).values()}
    tensors = {id(t): t for t in (*module.parameters(), *module.buffers())}
    return [t for key, t in tensors.items() if key not in masks | format_tensor_ids(module)]


def _sum(tensors: Iterable[Tensor], rounded: Mapping[int, float]) -> tuple[float, int]:
    """Return the bits and the number of elements of tensors."""
    tensors = list(tensors)
    bits = sum(rounded.get(id(t), 8.0 * t.element_size()) * t.numel() for t in tensors)
    return bits, sum(t.numel() for t in tensors)
