"""Which nodes write to their inputs."""

from __future__ import annotations

from typing import Any

from torch import fx

from chop.ir.graph.mase_metadata import mase
from chop.ir.graph.tracer import IN_PLACE_OPERATORS


def writes_in_place(node: fx.Node) -> bool:
    """Return whether a node changes the tensor that it takes."""
    if node.op == "call_module":
        return getattr(mase(node).module, "inplace", False) is True
    if node.kwargs.get("inplace") is True or mase(node).common.args.get("inplace") is True:
        return True
    return named_in_place(node.target, node.op)


def named_in_place(target: Any, op: str = "call_function") -> bool:
    """Return whether the name of a function says that it writes in place: `relu_`, `iadd`."""
    name = str(getattr(target, "__name__", target))
    if name.endswith("_") and not name.endswith("__") and name not in ("not_", "and_", "or_"):
        return True
    return op == "call_function" and name in IN_PLACE_OPERATORS
