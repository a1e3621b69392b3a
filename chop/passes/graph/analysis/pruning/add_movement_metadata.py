"""Watch where training moves weights."""

from __future__ import annotations

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import graph_pass


@graph_pass("add_movement_metadata", "analysis", needs=("common",))
def add_movement_metadata_analysis_pass(graph: MaseGraph) -> dict[str, list[str]]:
    """Let layers that can be pruned add up the movement of their weights while they train.

    Train then, and prune with the method "movement". The layers compute as before.
    """
    # a transform builds on analyses, so it is imported where it is needed
    from chop.passes.graph.transforms.pruning.masks import renewed
    from chop.passes.graph.transforms.pruning.movement import attach_movement
    from chop.passes.graph.transforms.pruning.plan import is_prunable
    from chop.passes.graph.transforms.pruning.prune import replace_module

    targets = list(dict.fromkeys(str(node.target) for node in graph.nodes if is_prunable(node)))
    for target in targets:
        new = renewed(graph.modules[target])
        attach_movement(new)
        replace_module(graph, target, new)
    return {"followed": targets}
