"""The bits of a model without a graph."""

from __future__ import annotations

import math

from torch import Tensor, nn

from chop.passes.graph.analysis.cost.ledger import Numbers
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.module.calculate_avg_bits import WEIGHTED


def module_bits(model: nn.Module) -> Numbers:
    """Return the bits of the weights of a model in their formats; what needs a graph is NaN."""
    bits: dict[int, float] = {}
    weights = []
    for layer in model.modules():
        formats = layer.formats if isinstance(layer, Quantized) else {}
        for name, tensor in layer.named_parameters(recurse=False):
            fmt = formats.get(name)
            width = None if fmt is None else fmt.average_bits(list(tensor.shape))
            is_counted = isinstance(layer, WEIGHTED) and name == "weight" and id(tensor) not in bits
            weights += [(width, tensor.numel())] if is_counted else []
            bits.setdefault(id(tensor), _bits(tensor, width))
    saved = {id(x): x for x in model.state_dict(keep_vars=True).values()}
    others = sum(_bits(x, None) for key, x in saved.items() if key not in bits)
    parameters = round(sum(bits.values()))
    return Numbers(
        macs=math.nan,
        flops=math.nan,
        bit_ops=math.nan,
        parameter_bits=parameters,
        saved_bits=parameters + round(others),
        peak_activation_bits=math.nan,
        weights=tuple(weights),
    )


def _bits(tensor: Tensor, width: float | None) -> float:
    return tensor.numel() * (8.0 * tensor.element_size() if width is None else width)
