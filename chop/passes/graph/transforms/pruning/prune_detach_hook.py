"""Make pruning permanent."""

from __future__ import annotations

from chop.ir.dotted import deepsetattr
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import graph_pass
from chop.passes.graph.transforms.pruning import activation, movement
from chop.passes.graph.transforms.pruning.masks import detach_mask, renewed
from chop.passes.graph.transforms.pruning.weights import layer_masks


@graph_pass("prune_detach_hook", "transform")
def prune_detach_hook_transform_pass(graph: MaseGraph) -> dict[str, list[str]]:
    """Replace masks by zeros in the weights, and stop pruning inputs and tracking movement."""
    info: dict[str, list[str]] = {"weight": [], "activation": []}
    for target in dict.fromkeys(str(n.target) for n in graph.nodes if n.op == "call_module"):
        module = graph.modules[target]
        masks, hooked = layer_masks(module), activation.activation_pruning_of(module) is not None
        followed = movement.follows_movement(module)
        if not (masks or hooked or followed):
            continue
        new = renewed(module)
        for name in masks:
            part, _, last = name.rpartition(".")
            detach_mask(new.get_submodule(part), last)
        if hooked:
            activation.detach_activation_pruning(new)
        if followed:
            movement.detach_movement(new)
        deepsetattr(graph.model, target, new)
        info["weight"] += [target] * bool(masks)
        info["activation"] += [target] * hooked
    return info
