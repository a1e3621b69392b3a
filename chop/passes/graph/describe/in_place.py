"""Which nodes write to their inputs."""

from __future__ import annotations

from typing import Any

from torch import fx

from chop.ir.graph.mase_metadata import mase
from chop.ir.graph.tracer import IN_PLACE_OPERATORS
from chop.ir.op_spec import StandIn


def writes_in_place(node: fx.Node) -> bool:
    """Return whether a node changes the tensor that it takes."""
    if node.op == "call_module":
        return getattr(mase(node).module, "inplace", False) is True
    if node.kwargs.get("inplace") is True or mase(node).common.args.get("inplace") is True:
        return True
    if isinstance(node.target, StandIn):  # a quantised function writes where the float one does
        return named_in_place(node.target.target)
    return named_in_place(node.target, node.op)


def named_in_place(target: Any, op: str = "call_function") -> bool:
    """Return whether the name of a function says that it writes in place: `relu_`, `iadd`."""
    name = str(getattr(target, "__name__", target))
    if name.endswith("_") and not name.endswith("__") and name not in ("not_", "and_", "or_"):
        return True
    return op == "call_function" and name in IN_PLACE_OPERATORS


def latest_values(graph: fx.Graph) -> dict[str, dict[str, str]]:
    """Return, for each node, which of its inputs have the value of a node that wrote to them."""
    written: dict[str, str] = {}  # node -> the last one that wrote to its tensor
    latest: dict[str, dict[str, str]] = {}
    for node in graph.nodes:
        names = [source.name for source in node.all_input_nodes]
        latest[node.name] = {name: written[name] for name in names if name in written}
        if names and writes_in_place(node):
            same = [name for name, writer in written.items() if writer == names[0]]
            written |= dict.fromkeys((names[0], *same), node.name)
    return latest
