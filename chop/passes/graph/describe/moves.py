"""Nodes that give numbers of their input only, so that they commute with rounding."""

from __future__ import annotations

from torch import fx

from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import has_trait

__all__ = ["moved", "source"]

# besides ops that give all numbers of their input in another shape
PICKING = """
    permute transpose contiguous getitem slice narrow select max_pool1d max_pool2d max_pool3d
"""
_PICKING = frozenset(PICKING.split())


def moved(node: fx.Node) -> fx.Node | None:
    """Return the input of which a node only gives numbers, besides zeros; None for other nodes."""
    if node.op in ("placeholder", "get_attr", "output") or not node.args:
        return None
    op, value = mase(node).common.mase_op, node.args[0]
    picks = has_trait(op, "reshape") or has_trait(op, "no_op") or op in _PICKING
    if not picks and not (op == "pad" and _with_zeros(node)):
        return None
    return value if isinstance(value, fx.Node) else None


def source(node: fx.Node) -> fx.Node:
    """Return the node that computes a value, before it is moved."""
    while (value := moved(node)) is not None:
        node = value
    return node


def _with_zeros(node: fx.Node) -> bool:
    """Whether a call of `pad` adds zeros; layers that pad may repeat values."""
    given = dict(zip(("mode", "value"), node.args[2:], strict=False)) | node.kwargs
    is_function = node.op == "call_function"
    return is_function and given.get("mode", "constant") == "constant" and not given.get("value")
