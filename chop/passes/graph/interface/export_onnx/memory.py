"""Which nodes write to tensors that others read: a file has values, and no memory."""

from __future__ import annotations

from torch import fx, nn

from chop.ir.graph.tracer import VIEWS
from chop.passes.graph.describe.in_place import named_in_place
from chop.passes.graph.interface.export_onnx.observe import KnownGraph
from chop.passes.graph.interface.export_onnx.values import ExportError

__all__ = ["check_writes", "homes_of", "writes_to_input", "written_nodes"]


def writes_to_input(node: fx.Node, known: KnownGraph) -> bool:
    """Return whether a node changes the first tensor that it takes."""
    if node.op == "call_module":
        layer: nn.Module = known.model.get_submodule(str(node.target))
        return getattr(layer, "inplace", False) is True
    if node.op not in ("call_function", "call_method") or not node.all_input_nodes:
        return False
    target = getattr(node.target, "target", node.target)
    written = node.kwargs.get("inplace") is True or named_in_place(target, node.op)
    return written or known.op(node) == "setitem"


def written_nodes(node: fx.Node, known: KnownGraph) -> list[fx.Node]:
    """Return the nodes whose tensor a writing node changes as a whole: x, x.add_(1) and so on."""
    found = [node.all_input_nodes[0]]
    while writes_to_input(found[-1], known):
        found.append(found[-1].all_input_nodes[0])
    return found


def check_writes(known: KnownGraph, needed: set[fx.Node]) -> None:
    """Refuse a write to memory that is read later under another name, or by the next call."""
    nodes = [node for node in known.model.graph.nodes if node.op != "output"]
    order = {node: place for place, node in enumerate(known.model.graph.nodes)}
    writing = [node for node in nodes if node in needed and writes_to_input(node, known)]
    if not writing:
        return
    homes = homes_of(known)
    for node in writing:
        whole = written_nodes(node, known)
        if homes[node].op == "get_attr":
            raise ExportError(
                f"node {node.name!r} changes the tensor {str(homes[node].target)!r} of the model, "
                f"on which the next call depends; keep the tensor constant"
            )
        before = [n for n in nodes if homes[n] is homes[node] and order[n] < order[node]]
        for other in before:
            if other not in whole and any(order[user] > order[node] for user in other.users):
                raise ExportError(
                    f"node {node.name!r} writes to the memory of {other.name!r}, which is read "
                    f"later; compute a new tensor instead of writing in place"
                )


def homes_of(known: KnownGraph) -> dict[fx.Node, fx.Node]:
    """Return, for each node, the first one with the same memory."""
    homes: dict[fx.Node, fx.Node] = {}
    for node in known.model.graph.nodes:
        calls = node.op in ("call_function", "call_method", "call_module")
        sources = node.all_input_nodes
        shares = calls and sources and (known.op(node) in VIEWS or writes_to_input(node, known))
        source = known.shared.get(node) if calls else None
        homes[node] = homes[source or sources[0]] if source or shares else node
    return homes
