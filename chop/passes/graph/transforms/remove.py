"""Remove nodes that return their input."""

from __future__ import annotations

from typing import Any

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.passes.base import graph_pass
from chop.passes.graph.transforms.metadata_sync import bypass, finish


@graph_pass("remove_dropout", "transform", needs=("common",))
def remove_dropout_transform_pass(graph: MaseGraph) -> dict[str, Any]:
    """Remove every dropout, layer or function; eval mode is unaffected."""
    return {"removed": _remove(graph, "dropout")}


@graph_pass("remove_identity", "transform", needs=("common",))
def remove_identity_transform_pass(graph: MaseGraph) -> dict[str, Any]:
    """Remove every nn.Identity."""
    return {"removed": _remove(graph, "identity")}


def _remove(graph: MaseGraph, op: str) -> list[str]:
    """Bypass the nodes of an op that return only a tensor, without a mask; return their names."""
    commons = {node: mase(node).common for node in graph.nodes}
    nodes = [n for n, c in commons.items() if c.mase_op == op and list(c.results) == ["data_out_0"]]
    names = [node.name for node in nodes]
    modules = [str(node.target) for node in nodes if node.op == "call_module"]
    for node in nodes:
        bypass(graph, node, node.args[0] if node.args else node.kwargs["input"])
    for node in reversed(graph.nodes):  # a node that reads the training flag may become unused
        if mase(node).common.mase_op == "training_mode" and not node.users:
            modules.append(str(node.target))
            graph.fx_graph.erase_node(node)
    finish(graph, unused=modules)
    return names
