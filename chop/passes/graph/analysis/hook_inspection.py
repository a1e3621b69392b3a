"""List the hooks that are registered on the layers of a graph."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import graph_pass


@graph_pass("hook_inspection", "analysis")
def hook_inspection_analysis_pass(graph: MaseGraph) -> dict[str, tuple[int, Any]]:
    """Forward hooks and pre-hooks of convolutions and linear layers: target_id -> (id, hook)."""
    hooks: dict[str, tuple[int, Any]] = {}
    for target in dict.fromkeys(str(n.target) for n in graph.nodes if n.op == "call_module"):
        module = graph.modules[target]
        if not isinstance(module, nn.Linear | _ConvNd):
            continue
        for hook_id, hook in (*module._forward_pre_hooks.items(), *module._forward_hooks.items()):
            hooks[f"{target}_{hook_id}"] = (hook_id, hook)
    return hooks
