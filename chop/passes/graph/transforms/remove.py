"""Remove nodes that return their input."""

from __future__ import annotations

from typing import Any

from torch import fx

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
    """Bypass the nodes of an op that have one result; return their names."""
    nodes = [n for n in graph.nodes if mase(n).common.mase_op == op and _passes_on(n)]
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


def _passes_on(node: fx.Node) -> bool:
    """Whether a node returns only a tensor of its first argument's shape, without a mask."""
    return list(mase(node).common.results) == ["data_out_0"]
