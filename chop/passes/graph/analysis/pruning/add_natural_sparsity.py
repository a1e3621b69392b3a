"""Count the zeros in weights and activations, pruned or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.ir.dotted import deepgetattr
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import graph_pass
from chop.passes.graph.analysis.pruning.layers import software_entry, watch_layers


@graph_pass("add_natural_sparsity", "analysis", needs=("common",))
def add_natural_sparsity_metadata_analysis_pass(
    graph: MaseGraph, *, dummy_in: Mapping[str, Any] | None = None, add_meta: bool = False
) -> dict[str, Any]:
    """Count the zeros in the weights of layers and in the inputs of the layers.

    `<target>_weight` and `<target>_activation` are (number of elements, share of non-zeros), the
    density, as older scripts expect; `…_zero_fraction` beside each is the sparsity. `avg_…` are
    those of all elements of all layers. `add_meta` records both in `software.args` of each node.
    """
    # imported here because transforms build on analyses
    from chop.passes.graph.transforms.pruning.weights import weight_names

    counts: dict[str, dict[str, tuple[int, int]]] = {"weight": {}, "activation": {}}

    def watch(node: fx.Node, layer: nn.Module, x: Tensor) -> None:
        weights = {name: deepgetattr(layer, name) for name in weight_names(layer)}
        of = {"weight": weights, "activation": {"data_in_0": x}}
        for kind, tensors in of.items():
            each = {n: (t.numel(), int(torch.count_nonzero(t))) for n, t in tensors.items()}
            size, alive = (sum(column) for column in zip(*each.values(), strict=True))
            counts[kind][str(node.target)] = (size, alive)
            for name, numbers in each.items() if add_meta else ():
                entry = software_entry(node, name)
                entry["density"], entry["zero_fraction"] = _shares(*numbers)

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
