"""Bits per weight and per activation of a graph's weighted layers."""

from __future__ import annotations

import math
from typing import Any

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import TensorMeta, mase
from chop.passes.base import graph_pass

WEIGHTED = ("linear", "conv1d", "conv2d", "conv3d")


@graph_pass("calculate_avg_bits", "analysis", needs=("common",))
def calculate_avg_bits_mg_analysis_pass(
    graph: MaseGraph, *, legacy_sum: bool = False
) -> dict[str, Any]:
    """Average bits of weights and of the activations that flow into them.

    Returns `w_avg_bit`, `data_avg_bit`, and `layers`: both for every layer. A tensor left in float
    counts with its 32 bits. `legacy_sum` adds up the precision list, as the predecessor did.
    """
    layers: dict[str, dict[str, float]] = {}
    totals = {"weight": [0.0, 0], "data_in_0": [0.0, 0]}
    for node in graph.nodes:
        common = mase(node).common
        if common.mase_op not in WEIGHTED:
            continue
        bits = {name: _bits(name, common.args.tensor(name), legacy_sum) for name in totals}
        layers[node.name] = {"w_avg_bit": bits["weight"], "data_avg_bit": bits["data_in_0"]}
        for name, total in totals.items():
            count = math.prod(common.args.tensor(name).shape)
            total[0] += bits[name] * count
            total[1] += count
    weights, data = (bits / count if count else 32.0 for bits, count in totals.values())
    return {"w_avg_bit": weights, "data_avg_bit": data, "layers": layers}


def _bits(operand: str, tensor: TensorMeta, legacy_sum: bool) -> float:
    if legacy_sum:
        return float(sum(number for number in tensor.precision if isinstance(number, int)))
    return tensor.format.for_operand(operand).average_bits(tensor.shape)
