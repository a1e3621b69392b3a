"""Helpers for writing passes, in notebooks and here."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import fx, nn

from chop.ir.dotted import deepgetattr as deepgetattr
from chop.ir.dotted import deepsetattr as deepsetattr
from chop.ir.dotted import get_parent_name as get_parent_name
from chop.ir.graph.mase_graph import MaseGraph
from chop.registry import UnknownName


class UnknownNode(UnknownName, RuntimeError):
    """A name that no node of a graph has."""


def check_func_type(node: fx.Node, my_func: Any) -> bool:
    """Whether `node` calls a function of the same type as `my_func`."""
    return type(node.target) is type(my_func)


def check_func(node: fx.Node, my_func: Any) -> bool:
    """Whether `node` calls `my_func` itself."""
    return node.target is my_func


def isinstance_but_not_subclass(my_obj: object, my_class: type) -> bool:
    """Return whether `my_obj` is of exactly this class.

    >>> isinstance_but_not_subclass(nn.Hardtanh(), nn.Hardtanh)
    True
    >>> isinstance_but_not_subclass(nn.ReLU6(), nn.Hardtanh)
    False
    """
    return type(my_obj) is my_class


def match_a_pattern(name: str, patterns: Iterable[str]) -> str | None:
    """Return the first of `patterns` that matches the whole of `name`.

    >>> match_a_pattern("layer_12_fc", [r"head", r"layer_\\d+_fc"])
    'layer_\\\\d+_fc'
    """
    return next((pattern for pattern in patterns if re.fullmatch(pattern, name)), None)


def get_module_by_target(model: nn.Module, target: str) -> nn.Module | None:
    """Return the module of that dotted name, which a call_module node calls, or None."""
    try:
        return model.get_submodule(target)
    except AttributeError:
        return None


get_module_by_name = get_module_by_target


def get_node_by_name(graph: fx.Graph, request_name: str) -> fx.Node:
    """Return the node of that name."""
    nodes: dict[str, fx.Node] = {node.name: node for node in graph.nodes}
    if not isinstance(request_name, str) or request_name not in nodes:
        raise UnknownNode("node", request_name, nodes)
    return nodes[request_name]


def vf(string: str) -> str:
    """Convert a name to a Verilog identifier.

    >>> vf("seq_blocks.2 weight")
    'seq_blocks_2_weight'
    """
    return string.replace(".", "_").replace(" ", "_")


def v2p(string: str) -> str:
    """Convert a Verilog name to the name of a parameter.

    >>> v2p("data_in_0")
    'DATA_IN_0'
    """
    return string.upper()


def get_input_index(node: fx.Node, next_node: fx.Node) -> int:
    """Return the position of `node` among the inputs of `next_node`."""
    inputs = next_node.all_input_nodes
    if node not in inputs:
        what = f"{node.name!r} is not an input of {next_node.name!r}"
        raise ValueError(f"{what}; its inputs are {[n.name for n in inputs]}")
    return inputs.index(node)


def _common(node: fx.Node, key: str) -> Any:
    try:
        return node.meta["mase"].parameters["common"][key]
    except KeyError:
        raise KeyError(
            f"node {node.name!r} has no {key} yet; run init_metadata_analysis_pass and "
            f"add_common_metadata_analysis_pass first"
        ) from None


def get_mase_op(node: fx.Node) -> str:
    """ "linear", "relu", "add", …"""
    return str(_common(node, "mase_op"))


def get_mase_type(node: fx.Node) -> str:
    """ "module", "module_related_func", "builtin_func", …"""
    return str(_common(node, "mase_type"))


def get_node_actual_target(node: fx.Node) -> Any:
    """The module itself for a module, the function for a function, else the target's name."""
    if node.op != "call_module":
        return node.target
    owner = node.graph.owning_module
    assert owner is not None, f"{node} belongs to a graph that no GraphModule owns"
    return owner.get_submodule(str(node.target))


def get_similar_node_actual_target(graph: MaseGraph | None, node: fx.Node) -> Any:
    """Return the actual target of the node of the same name in another graph, if there is one."""
    return None if graph is None else get_node_target_by_name(graph, node.name)


def get_node_target_by_name(graph: MaseGraph, name: str) -> Any:
    """The actual target of the node of that name."""
    return get_node_actual_target(get_node_by_name(graph.fx_graph, name))


def deepcopy_mase_graph(mase_graph: MaseGraph) -> MaseGraph:
    """An independent copy: model, graph and metadata."""
    return copy.deepcopy(mase_graph)


def init_project(project_dir: str | Path) -> None:
    """Create the directories of a hardware project."""
    hardware = [f"hardware/{name}" for name in ("rtl", "sim", "test/mase_top_tb", "hls")]
    for folder in ("software", *hardware):
        (Path(project_dir) / folder).mkdir(parents=True, exist_ok=True)
