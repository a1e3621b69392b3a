"""Describe the contents of a graph as text."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from tabulate import tabulate

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import graph_pass
from chop.passes.options import OutputPath
from chop.system.files import write_whole

FX_OPS = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output")


@graph_pass("report_graph", "analysis")
def report_graph_analysis_pass(
    graph: MaseGraph,
    *,
    file_name: OutputPath | None = None,
    style: Literal["24", "sections"] = "24",
) -> None:
    """Log the fx graph, the number of nodes of each kind, and the layers; or write them to a file.

    `style = "sections"` adds a table of all nodes and headings.
    """
    plain = f"{graph.fx_graph}\n{_overview(graph)}"
    text = _sections(graph) if style == "sections" else plain
    if file_name is None:
        print(text)  # noqa: T201  the labs read it off the notebook
    else:
        write_whole(file_name, text)


def _overview(graph: MaseGraph) -> str:
    counted = Counter(node.op for node in graph.nodes)
    counts = {op: counted[op] for op in FX_OPS}
    called = [n for n in graph.nodes if n.op == "call_module"]
    layers = [graph.modules[str(node.target)] for node in called]
    return f"Network overview:\n{counts}\nLayer types:\n{layers}"


def _sections(graph: MaseGraph) -> str:
    rows = [[n.op, n.name, n.target, n.args, n.kwargs] for n in graph.nodes]
    table = tabulate(rows, headers=["opcode", "name", "target", "args", "kwargs"])
    bar = "=" * 21
    return (
        f"Graph Analysis Report\n\n"
        f"{bar} Graph Summary {bar}\n\n{table}\n\n"
        f"{bar} Graph Syntax {bar}\n\n{graph.fx_graph}\n\n"
        f"{bar} Graph Overview {bar}\n\n{_overview(graph)}"
    )
