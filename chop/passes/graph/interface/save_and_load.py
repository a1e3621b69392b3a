"""Save a graph, or the metadata of its nodes, and load it again; loading runs no code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.graph.meta_file import read_node_meta, write_node_meta
from chop.ir.graph.names import SavedNames, user_definitions
from chop.ir.graph.saving import load_graph, save_graph
from chop.passes.base import GraphPass, graph_pass
from chop.passes.options import InputPath, OutputPath
from chop.system.log import show_logs_unless_configured

logger = logging.getLogger(__name__)


class _TakesPath(GraphPass):
    """A pass that also takes a path: `save_mase_graph_interface_pass(graph, "directory")`."""

    def check(self, pass_args: Any) -> dict[str, Any]:
        if isinstance(pass_args, str | Path):
            pass_args = {next(iter(self.options)): pass_args}
        return super().check(pass_args)


@graph_pass("save_mase_graph", "interface", cls=_TakesPath)
def save_mase_graph_interface_pass(graph: MaseGraph, *, save_dir: OutputPath) -> dict[str, Any]:
    """Save the graph as a directory, which replaces `save_dir`; the graph is only read."""
    folder = save_graph(graph, save_dir)
    show_logs_unless_configured()
    logger.info("Saved mase graph to %s", folder)
    return {"save_dir": str(folder)}


@graph_pass("load_mase_graph", "interface", cls=_TakesPath, new_nodes=True)
def load_mase_graph_interface_pass(graph: MaseGraph, *, load_dir: InputPath) -> dict[str, Any]:
    """Replace the graph by the one saved in `load_dir`, on the current graph's device."""
    first = next(graph.model.parameters(), torch.empty(0))
    loaded = load_graph(load_dir, first.device, graph.custom_ops)
    graph.model, graph.tracer = loaded.model, None
    graph.cf_args, graph.custom_ops = loaded.cf_args, loaded.custom_ops
    graph.meta |= {key: loaded.meta[key] for key in ("made_from", "trained_on")}
    graph.meta["mase"] = loaded.meta["mase"].clone_for(graph)
    show_logs_unless_configured()
    logger.info("Loaded mase graph from %s", load_dir)
    return {"load_dir": str(load_dir)}


@graph_pass("save_node_meta_param", "interface", needs=("metadata",), cls=_TakesPath)
def save_node_meta_param_interface_pass(
    graph: MaseGraph, *, save_path: OutputPath
) -> dict[str, Any]:
    """Write the metadata of all nodes to a TOML file, one table per node, tensors beside it."""
    write_node_meta(graph, Path(save_path), SavedNames(user_definitions(graph.custom_ops)))
    show_logs_unless_configured()
    logger.info("Saved node meta param to %s", save_path)
    return {"save_path": str(save_path)}


@graph_pass("load_node_meta_param", "interface", cls=_TakesPath)
def load_node_meta_param_interface_pass(
    graph: MaseGraph, *, load_path: InputPath
) -> dict[str, Any]:
    """Load the metadata of nodes from a TOML file."""
    read_node_meta(graph, Path(load_path), SavedNames(user_definitions(graph.custom_ops)))
    return {"load_path": str(load_path)}


@graph_pass("metadata_value_type_cast", "transform", needs=("metadata",))
def metadata_value_type_cast_transform_pass(
    graph: MaseGraph, *, fn: Callable[[Any], Any]
) -> dict[str, Any]:
    """Replace every value in the metadata of every node by `fn(value)`."""
    for node in graph.nodes:
        _cast(mase(node).parameters, fn)
    return {}


def _cast(table: Any, fn: Callable[[Any], Any]) -> None:
    for key, value in list(table.items()):
        if isinstance(value, Mapping):
            _cast(value, fn)
        else:
            table[key] = fn(value)
