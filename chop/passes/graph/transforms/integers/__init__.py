"""From a quantised graph to the integer graph of the same network."""

from __future__ import annotations

import logging
from typing import Any

from chop.integers import IntegerGraph
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.log import show_logs_unless_configured
from chop.passes.base import PassArgsError, graph_pass, has_metadata
from chop.passes.graph.describe.final import refuse_final
from chop.passes.graph.transforms.integers.converter import Converter, rule_of

logger = logging.getLogger(__name__)

KEY = "integers"  # in the graph's meta, and the part of a node's metadata

__all__ = ["KEY", "integer_graph", "rule_of", "to_integer_graph_transform_pass"]


def integer_graph(graph: MaseGraph, *, as_noted: bool = False) -> IntegerGraph:
    """Return the integer graph of a quantised graph, which stays unchanged.

    `as_noted` also rounds values to the formats that the metadata has for them, as a circuit does.
    """
    bare = next((node for node in graph.nodes if not has_metadata(node, "common")), None)
    if bare is not None:
        raise PassArgsError(
            f"pass 'to_integer_graph' needs common metadata, and node {bare.name!r} has none; run "
            f"add_common_metadata_analysis_pass first"
        )
    refuse_final(graph)
    if not as_noted:
        return Converter(graph).convert()
    from chop.passes.graph.transforms.integers.noted import NotedConverter

    return NotedConverter(graph).convert()


@graph_pass("to_integer_graph", "transform", needs=("common",))
def to_integer_graph_transform_pass(graph: MaseGraph, *, silent: bool = False) -> dict[str, Any]:
    """Convert a quantised graph to integers: codes, scales, shifts and accumulator widths.

    The integer graph is `info["integer_graph"]` and `graph.meta["integers"]`; the network itself
    stays as it is. Each node's metadata gets a part `integers` with the width, the sign, the codes
    and the step of its result, and the bits of its accumulator. A node without a meaning
    in integers is refused. `silent` leaves out the table of all nodes.
    """
    integers = integer_graph(graph)
    graph.meta[KEY] = integers
    for node in graph.nodes:
        mase(node)[KEY] = _described(integers, node.name)
    if not silent:
        show_logs_unless_configured()
        logger.info("Integer graph:\n%s", integers.report())
    widths = integers.accumulator_widths
    return {
        "integer_nodes": len(integers.nodes),
        "widest_accumulator": max(widths.values(), default=0),
        "integer_graph": integers,
        "accumulator_widths": dict(widths),
        "notes": tuple(integers.notes),
    }


def _described(integers: IntegerGraph, source: str) -> dict[str, Any]:
    """Return what the metadata says about the integer nodes of a node."""
    nodes = [node for node in integers.nodes.values() if node.source == source]
    return {
        node.name: {
            "op": node.op.label,
            "inputs": list(node.inputs),
            "width": node.codes.width,
            "signed": node.codes.signed,
            "low": node.codes.lowest,
            "high": node.codes.highest,
            "step": str(node.codes.scale),
            **({"accumulator_width": node.codes.width} if node.accumulates else {}),
        }
        for node in nodes
    }
