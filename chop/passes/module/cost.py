"""The bits of a model without a graph."""

from __future__ import annotations

import math

from torch import Tensor, nn

from chop.passes.graph.analysis.cost.ledger import Numbers
from chop.passes.graph.describe.formats import format_tensor_ids
from chop.passes.module.calculate_avg_bits import all_tensors, rounded_parameters, weights_of_layers


def module_bits(model: nn.Module) -> Numbers:
    """Return the bits of the tensors of a model in their formats; what needs a graph is NaN."""
    rounded = rounded_parameters(model)
    weights = {id(w): w for each in weights_of_layers(model).values() for w in each}
    scales = format_tensor_ids(model)  # which the bits of their tensors contain
    saved = {id(x): x for x in model.state_dict(keep_vars=True).values() if id(x) not in scales}
    parameters = [p for p in model.parameters() if id(p) not in scales]

    def bits(tensor: Tensor) -> float:
        return tensor.numel() * rounded.get(id(tensor), 8.0 * tensor.element_size())

    return Numbers(
        macs=math.nan,
        flops=math.nan,
        bit_ops=math.nan,
        parameter_bits=round(sum(map(bits, parameters))),
        saved_bits=round(sum(map(bits, saved.values()))),
        peak_activation_bits=math.nan,
        weights=tuple((rounded.get(key), w.numel()) for key, w in weights.items()),
        tensors=tuple((rounded.get(id(x)), x.numel()) for x in all_tensors(model)),
    )
