"""Track how training moves weights, for movement pruning."""

from __future__ import annotations

from chop.ir.dotted import deepsetattr
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import graph_pass


@graph_pass("add_movement_metadata", "analysis", needs=("common",))
def add_movement_metadata_analysis_pass(graph: MaseGraph) -> dict[str, list[str]]:
    """Make layers that can be pruned accumulate the movement of their weights during training.

    Then train, and prune with the method "movement". The layers compute the same as before.
    """
    # imported here because transforms build on analyses
    from chop.passes.graph.transforms.pruning.masks import renewed
    from chop.passes.graph.transforms.pruning.movement import attach_movement
    from chop.passes.graph.transforms.pruning.plan import is_prunable

    targets = list(dict.fromkeys(str(node.target) for node in graph.nodes if is_prunable(node)))
    for target in targets:
        new = renewed(graph.modules[target])
        attach_movement(new)
        deepsetattr(graph.model, target, new)
    return {"followed": targets}
