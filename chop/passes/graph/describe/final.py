"""Refusal of layers that cannot be converted any further."""

from __future__ import annotations

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS
from chop.passes.schema import PassArgsError


def refuse_final(graph: MaseGraph) -> None:
    """Refuse a graph with layers that nothing can be made from, by the first of them."""
    ops = [(node.name, OPS.get(mase(node).common.mase_op)) for node in graph.nodes]
    found = [(name, op.name, op.final) for name, op in ops if op is not None and op.final]
    if found:
        (name, op, final), *others = found
        more = f" (and {len(others)} more)" if others else ""
        raise PassArgsError(f"node {name!r} is {op}, which {final.reason}{more}; {final.instead}")
