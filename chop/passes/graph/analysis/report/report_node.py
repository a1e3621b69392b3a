"""Tables of the metadata of a graph's nodes."""

from __future__ import annotations

import logging
import pprint
from collections.abc import Sequence
from typing import Any, Literal

from tabulate import tabulate
from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import TensorMeta, mase
from chop.passes.base import FILLED_BY, PassArgsError, graph_pass, has_metadata
from chop.passes.options import OutputPath
from chop.system.files import write_whole
from chop.system.log import show_logs_unless_configured

logger = logging.getLogger(__name__)

PARTS = ("common", "hardware", "software")


def _show(title: str, body: str) -> None:
    show_logs_unless_configured()
    logger.info("Inspecting graph [%s]", title)
    logger.info("\n%s", body)


def _identity(node: fx.Node) -> list[Any]:
    common = mase(node).common
    return [node.name, node.op, common.mase_type, common.mase_op]


@graph_pass("report_node_type", "analysis", needs=("common",))
def report_node_type_analysis_pass(graph: MaseGraph) -> None:
    """Log a table of every node's fx op, MASE type, MASE op and number format."""
    headers = ["Node name", "Fx Node op", "Mase type", "Mase op", "Value type"]
    rows = [
        [*_identity(node), mase(node).common.args.get("data_in_0", {}).get("type", "NA")]
        for node in graph.nodes
    ]
    _show("add_common_node_type_analysis_pass", tabulate(rows, headers=headers))


@graph_pass("report_node_shape", "analysis", needs=("common",))
def report_node_shape_analysis_pass(graph: MaseGraph) -> None:
    """Log every node's arguments and results with their shapes."""
    blocks = []
    for node in graph.nodes:
        common = mase(node).common
        args = [f"{name} = {_shape_or_value(arg)}" for name, arg in common.args.items()]
        results = [f"{name} = {_shape_or_value(arg)}" for name, arg in common.results.items()]
        blocks.append("\n".join([f"{node.name}:", "in:", *args, "out:", *results, ""]))
    _show("add_common_node_shape_analysis_pass", "\n".join(blocks))


def _shape_or_value(arg: Any) -> Any:
    return arg["shape"] if isinstance(arg, TensorMeta) and "shape" in arg else arg


@graph_pass("report_node_hardware_type", "analysis", needs=("common", "hardware"))
def report_node_hardware_type_analysis_pass(graph: MaseGraph) -> None:
    """Log a table of the number format, toolchain and device of every hardware node."""
    headers = ["Node name", "Fx Node op", "Type", "Tool Chain", "Device ID"]
    rows = [
        [
            node.name,
            node.op,
            mase(node).common.results["data_out_0"]["type"],
            mase(node).hardware.toolchain,
            mase(node).hardware.device_id,
        ]
        for node in graph.nodes
        if not mase(node).hardware.is_implicit
    ]
    _show("add_common_node_hardware_type_analysis_pass", tabulate(rows, headers=headers))


@graph_pass("report_node_meta_param", "analysis", needs=("common",))
def report_node_meta_param_analysis_pass(
    graph: MaseGraph,
    *,
    which: Sequence[Literal["all", "common", "hardware", "software"]] = ("all",),
    save_path: OutputPath | None = None,
) -> None:
    """Log a table of all metadata of every node; `which` selects parts, `save_path` stores it."""
    parts = [part for part in PARTS if part in which or "all" in which]
    for part in which:
        if part != "all" and not any(has_metadata(node, part) for node in graph.nodes):
            raise PassArgsError(f"no node has {part} metadata; run {FILLED_BY[part]}_analysis_pass")
    headers = ["Node name", "Fx Node op", "Mase type", "Mase op"]
    headers += [f"{part.capitalize()} Param" for part in parts]
    rows = [
        [*_identity(node), *(pprint.pformat(mase(node).parameters[part]) for part in parts)]
        for node in graph.nodes
    ]
    table = tabulate(rows, headers=headers, tablefmt="grid")
    _show("add_common_meta_param_analysis_pass", table)
    if save_path is not None:
        logger.info("Node meta param table is saved to %s", write_whole(save_path, table))
