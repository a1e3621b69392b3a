"""Count the zeros in weights and activations, pruned or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import graph_pass
from chop.passes.graph.analysis.pruning.layers import software_entry, watch_layers

OPERANDS = {"weight": "weight", "activation": "data_in_0"}


@graph_pass("add_natural_sparsity", "analysis", needs=("common",))
def add_natural_sparsity_metadata_analysis_pass(
    graph: MaseGraph, *, dummy_in: Mapping[str, Any] | None = None, add_meta: bool = False
) -> dict[str, Any]:
    """Count the zeros in the weights of layers and in the inputs of the layers.

    `<target>_weight` and `<target>_activation` are (number of elements, share of non-zeros), the
    density, as older scripts expect; `…_zero_fraction` beside each is the sparsity. `avg_…` are
    those of all elements of all layers. `add_meta` records both in `software.args` of each node.
    """
    counts: dict[str, dict[str, tuple[int, int]]] = {"weight": {}, "activation": {}}

    def watch(node: fx.Node, layer: nn.Module, x: Tensor) -> None:
        weight: Any = layer.weight
        for kind, tensor in (("weight", weight), ("activation", x)):
            size, alive = tensor.numel(), int(torch.count_nonzero(tensor))
            counts[kind][str(node.target)] = (size, alive)
            if add_meta:
                entry = software_entry(node, OPERANDS[kind])
                entry["density"], entry["zero_fraction"] = _shares(size, alive)

    watch_layers(graph, dummy_in, watch)
    info: dict[str, Any] = {}
    for target in counts["weight"]:
        for kind in counts:
            size, alive = counts[kind][target]
            density, zero_fraction = _shares(size, alive)
            info[f"{target}_{kind}"] = (size, density)
            info[f"{target}_{kind}_zero_fraction"] = zero_fraction
    for kind, of in counts.items():
        total, alive = (sum(column) for column in zip((0, 0), *of.values(), strict=True))
        info[f"avg_{kind}"], info[f"avg_{kind}_zero_fraction"] = _shares(total, alive)
    return info


def _shares(size: int, alive: int) -> tuple[float, float]:
    """Return (density, sparsity); they sum to 1, except for an empty tensor."""
    return (alive / size, (size - alive) / size) if size else (0.0, 0.0)
