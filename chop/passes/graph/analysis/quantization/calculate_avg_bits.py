"""Bits per weight and per activation of a graph's weighted layers."""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS, has_trait, ops_with
from chop.numerics import from_dtype
from chop.passes.base import graph_pass
from chop.passes.graph.describe.formats import (
    dtype_of,
    layer_operand,
    node_formats,
    operand_shape,
)

WEIGHTED = ops_with("weighted_sum")


def averaged_weights(node: fx.Node) -> list[str]:
    """Return the weights of a node that average bits are of, by their names in the metadata.

    Those of weighted sums, as in the labs; all of attention and recurrence; and the matrices of
    layers that have no quantized form, so that these never go unnoticed.
    """
    common = mase(node).common
    if common.mase_op in WEIGHTED:
        return ["weight"]
    spec, module = OPS.get(common.mase_op), mase(node).module
    tensors = dict(common.args.tensors())
    if module is None:
        several = has_trait(common.mase_op, "inner_products")
        return [name for name in tensors if several and "weight" in name]
    matrices = [name for name, _ in module.named_parameters() if name in tensors]
    matrices = [name for name in matrices if len(tensors[name].shape) > 1]
    if has_trait(common.mase_op, "inner_products"):
        return [name for name in matrices if "weight" in name]
    return matrices if spec is None or not spec.quantized else []


@graph_pass("calculate_avg_bits", "analysis", needs=("common",))
def calculate_avg_bits_mg_analysis_pass(
    graph: MaseGraph, *, legacy_sum: bool = False
) -> dict[str, Any]:
    """Average bits per element of weights, and of the activations that enter weighted layers.

    Returns `w_avg_bit`, `data_avg_bit`, and `layers`: both for every layer. A tensor left in float
    counts with its 32 bits. `legacy_sum` adds up the precision list, as the predecessor did.
    """
    layers: dict[str, dict[str, float]] = {}
    weights: list[tuple[float, int]] = []  # bits per element, number of elements
    data: list[tuple[float, int]] = []
    counted = set()
    for node in graph.nodes:
        names = averaged_weights(node)
        if not names:
            continue
        sizes = {n: math.prod(operand_shape(node, n)) for n in (*names, "data_in_0")}
        bits = {name: (_bits(node, name, legacy_sum), size) for name, size in sizes.items()}
        own = [bits[name] for name in names]
        layers[node.name] = {"w_avg_bit": _average(own), "data_avg_bit": bits["data_in_0"][0]}
        data.append(bits["data_in_0"])
        weight = node.target if node.op == "call_module" else node
        if weight not in counted:  # a layer that is called twice has its weights only once
            weights += own
        counted.add(weight)
    return {"w_avg_bit": _average(weights), "data_avg_bit": _average(data), "layers": layers}


def _average(tensors: list[tuple[float, int]]) -> float:
    """Average bits per element over tensors of any size; 32 without elements."""
    elements = sum(count for _, count in tensors)
    return sum(bits * count for bits, count in tensors) / elements if elements else 32.0


def _bits(node: fx.Node, name: str, legacy_sum: bool) -> float:
    args = mase(node).common.args
    # the node knows more than its metadata: options beyond the precision may cost bits
    fmt = node_formats(node).get(layer_operand(mase(node).common.mase_op, name) or "")
    if fmt is None:
        fmt = args.tensor(name).format if name in args else from_dtype(dtype_of(node, name))
    if not legacy_sum:
        return fmt.average_bits(operand_shape(node, name))
    precision = args.tensor(name).precision if name in args else fmt.precision
    return float(sum(number for number in precision if isinstance(number, int)))
