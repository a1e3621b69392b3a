"""What quantisation changed: a table of nodes, and a histogram of ops."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

from tabulate import tabulate
from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import GraphPass, graph_pass
from chop.passes.graph.utils import get_mase_op, get_mase_type, get_node_actual_target
from chop.passes.options import OutputPath
from chop.system.files import whole_file
from chop.system.log import show_logs_unless_configured

logger = logging.getLogger(__name__)

TABLE, HISTOGRAM = "quantize_table.csv", "quantize_histogram.csv"

Rows = list[dict[str, Any]]


def _type_of(node: fx.Node) -> str:
    """The class of a module, the name of a function or a method, else the target."""
    target = get_node_actual_target(node)
    if node.op == "call_module":
        return type(target).__name__
    return str(getattr(target, "__name__", target))


def _changed(original: fx.Node, quantized: fx.Node) -> bool:
    ours, theirs = get_node_actual_target(quantized), get_node_actual_target(original)
    if original.op == quantized.op == "call_module":
        ours, theirs = type(ours), type(theirs)
    return bool(ours != theirs) or _config(original) != _config(quantized)


def _config(node: fx.Node) -> Any:
    """The config of a quantized node."""
    if node.op == "call_module":
        return getattr(get_node_actual_target(node), "config", None)
    return node.kwargs.get("config")


def compare_nodes(ori_graph: MaseGraph, graph: MaseGraph) -> Rows:
    """One row per node, in order."""
    originals, nodes = list(ori_graph.nodes), list(graph.nodes)
    if len(originals) != len(nodes):
        raise ValueError(
            f"the graphs have {len(originals)} and {len(nodes)} nodes; compare a graph with the "
            f"one that it was quantised from"
        )
    return [
        {
            "Ori name": ori.name,
            "New name": new.name,
            "MASE_TYPE": get_mase_type(new),
            "Mase_OP": get_mase_op(new),
            "Original type": _type_of(ori),
            "Quantized type": _type_of(new),
            "Changed": _changed(ori, new),
        }
        for ori, new in zip(originals, nodes, strict=True)
    ]


def histogram(ori_graph: MaseGraph, graph: MaseGraph) -> Rows:
    """How many nodes of each kind there are, and how many of them changed."""
    counts: dict[tuple[str, str], list[bool]] = {}
    for row in compare_nodes(ori_graph, graph):
        counts.setdefault((row["Original type"], row["Mase_OP"]), []).append(row["Changed"])
    return [
        {
            "Original type": kind,
            "OP": op,
            "Total": len(changes),
            "Changed": sum(changes),
            "Unchanged": len(changes) - sum(changes),
        }
        for (kind, op), changes in sorted(counts.items())
    ]


def _table(rows: Rows) -> str:
    return tabulate(rows, headers="keys", tablefmt="orgtbl")


def _frame(rows: Rows, path: str | Path | None) -> Any:
    """Return a data frame if pandas is installed, else the rows; save it as CSV to `path`."""
    if path is not None:
        with whole_file(path) as part, part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["", *rows[0]])  # the index column of a data frame has no name
            writer.writerows([i, *row.values()] for i, row in enumerate(rows))
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)


def graph_iterator_compare_nodes(
    ori_graph: MaseGraph,
    graph: MaseGraph,
    save_path: str | Path | None = None,
    silent: bool = False,
) -> Any:
    """Compare each node with the original, as a data frame; at DEBUG level also as a table."""
    rows = compare_nodes(ori_graph, graph)
    if not silent:
        logger.debug("Compare nodes:")
        logger.debug("\n%s", _table(rows))
    return _frame(rows, save_path)


def graph_iterator_node_histogram(
    ori_graph: MaseGraph, graph: MaseGraph, save_path: str | Path | None = None
) -> Any:
    """How many nodes of each kind changed, as a data frame and as a table in the log."""
    rows = histogram(ori_graph, graph)
    show_logs_unless_configured()
    logger.info("Quantized graph histogram:")
    logger.info("\n%s", _table(rows))
    return _frame(rows, save_path)


class _Summarize(GraphPass):
    """A pass that also takes `(original, quantized, save_dir)`."""

    def __call__(
        self, graph: MaseGraph, pass_args: Any = None, *save_dir: Any, **options: Any
    ) -> tuple[MaseGraph, dict[str, Any]]:
        if not isinstance(pass_args, MaseGraph):
            return super().__call__(graph, pass_args, **options)
        folder = dict(zip(("save_dir",), save_dir, strict=False))
        return super().__call__(pass_args, {"original_graph": graph, **folder, **options})


@graph_pass("summarize_quantization", "analysis", needs=("common",), cls=_Summarize)
def summarize_quantization_analysis_pass(
    graph: MaseGraph, *, original_graph: MaseGraph, save_dir: OutputPath | None = None
) -> dict[str, Any]:
    """Compare a quantized graph with its original: a histogram in the log, CSV files if asked."""
    table, histogram = (save_dir and Path(save_dir) / name for name in (TABLE, HISTOGRAM))
    return {
        "table": graph_iterator_compare_nodes(original_graph, graph, table),
        "histogram": graph_iterator_node_histogram(original_graph, graph, histogram),
    }
