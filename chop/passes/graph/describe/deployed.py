"""Layers of the pass `deploy`, which nothing can be made from any more."""

from __future__ import annotations

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.passes.schema import PassArgsError

DEPLOYED = "deployed_linear"  # the op of these layers


def refuse_deployed(graph: MaseGraph) -> None:
    """Refuse a graph with deployed layers, by the first of them."""
    names = [node.name for node in graph.nodes if mase(node).common.mase_op == DEPLOYED]
    if names:
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        raise PassArgsError(
            f"node {names[0]!r} is {DEPLOYED}, which runs a kernel of torch{more}; use the "
            f"quantised graph, which is saved without the pass 'deploy'"
        )
