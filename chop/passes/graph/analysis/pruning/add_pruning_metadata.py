"""Record how much of each layer is pruned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import graph_pass
from chop.passes.graph.analysis.pruning.layers import software_entry, watch_layers


@graph_pass("add_pruning_metadata", "analysis", needs=("common",))
def add_pruning_metadata_analysis_pass(
    graph: MaseGraph, *, dummy_in: Mapping[str, Any] | None = None, add_value: bool = False
) -> dict[str, dict[str, float]]:
    """Record in `software.args` which share of each weight and input is masked (0: nothing).

    `add_value` keeps the masks themselves, as `mask_value`. Returns `weight_sparsity` and
    `activation_sparsity` by target; `add_natural_sparsity` also counts zeros that were not pruned.
    """
    # imported here because transforms build on analyses
    from chop.passes.graph.transforms.pruning.activation import activation_mask
    from chop.passes.graph.transforms.pruning.weights import (
        layer_masks,
        weight_count,
        weight_names,
    )

    sparsities: dict[str, dict[str, float]] = {}

    def watch(node: fx.Node, layer: nn.Module, x: Tensor) -> None:
        known, names = layer_masks(layer), weight_names(layer)
        masks = {name: known.get(name) for name in names}
        masks["data_in_0"] = activation_mask(layer, x)
        for operand, mask in masks.items():
            entry = software_entry(node, operand)
            entry["sparsity"] = _pruned_share(mask)
            if add_value and mask is not None:
                entry["mask_value"] = mask.detach().clone()
        pruned = sum(mask.numel() - int(mask.sum()) for mask in known.values())
        sparsities[str(node.target)] = {
            "weight_sparsity": pruned / max(1, weight_count(layer)),
            "activation_sparsity": _pruned_share(masks["data_in_0"]),
        }

    watch_layers(graph, dummy_in, watch)
    return sparsities


def _pruned_share(mask: Tensor | None) -> float:
    return 0.0 if mask is None else 1 - int(mask.sum()) / max(1, mask.numel())
