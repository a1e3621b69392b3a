"""Merge layers into the truth tables of LogicNets layers, and write circuits of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from torch import fx

from chop.hardware.emit import EmitOptions
from chop.hardware.projects import HardwareProject
from chop.hardware.unrolled import unrolled_circuit
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import Operands, mase
from chop.methods.logicnets.layers import AROUND, KEYS, LogicNets, called_once, follows, is_rows
from chop.options import PositiveFloat
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.transforms import metadata_sync as sync
from chop.passes.graph.transforms.integers import integer_graph
from chop.passes.graph.transforms.quantize.config import config_in, without_na
from chop.passes.graph.transforms.verilog.emission import Emission
from chop.passes.graph.transforms.verilog.emit_top import check_top_name
from chop.passes.graph.utils import UnknownNode, get_node_by_name
from chop.passes.options import NodeChoice, OutputPath, Problem, choices
from chop.registry import unknown

__all__ = ["emit_logicnets_transform_pass", "logicnets_fusion_transform_pass"]


@graph_pass("logicnets_fusion", "transform", needs=("common",))
def logicnets_fusion_transform_pass(graph: MaseGraph, **per_node: Any) -> dict[str, Any]:
    """Merge the layers around LogicNets layers into them, and compute their truth tables.

    Each key is the name of such a node, with a table `{"config": {"additional_layers_inputs":
    […], "additional_layers_outputs": […]}}` of names of nodes, in the order in which they are
    computed; by default those of the config that the layer was quantized with. Without any key,
    all LogicNets layers with such configs are merged with the layers they name.
    """
    per_node = per_node or {name: {} for name in _unmerged(graph)}
    plans = {key: _plan(graph, key, table) for key, table in per_node.items()}
    erased = []
    for node, before, after in plans.values():
        layer = sync.own_copy(graph.modules[str(node.target)])
        assert isinstance(layer, LogicNets)
        modules = [[graph.modules[str(n.target)] for n in part] for part in (before, after)]
        try:
            layer.merge(*modules)
        except ValueError as error:
            raise PassArgsError(f"{node.name!r}: {error}") from None
        layer.calculate_truth_tables()
        if after:
            sync.take_results(node, after[-1])
        if before:
            mase(node).common.args = Operands()  # from now on it takes another node's result
        for part in (*before, *after):
            erased.append(str(part.target))
            sync.bypass(graph, part, part.all_input_nodes[0])
        sync.exchange(graph, [node], layer)
    sync.finish(graph, unused=erased)
    return {"fused": list(plans), "erased": erased}


@logicnets_fusion_transform_pass.law
def _laws(options: Mapping[str, Any]) -> Iterator[Problem]:
    for key, table in options.items():
        config = config_in(table)
        if config is None:
            yield Problem(
                key,
                f"{key!r} needs a table {{'config': {{'additional_layers_outputs': […], …}}}}, "
                f"not {table!r:.60}",
            )
        for option in config or ():
            if option not in KEYS:
                text = f"{key!r}: {unknown('key of logicnets', option, KEYS)}"
                yield Problem(f"{key}.config.{option}", text)


@logicnets_fusion_transform_pass.chooses
def _chosen(options: Mapping[str, Any]) -> Iterator[NodeChoice]:
    for key, table in options.items():
        yield NodeChoice(key, "name", key)
        config = without_na(config_in(table) or {})
        for option in AROUND:
            yield from choices(f"{key}.config.{option}", "name", config.get(option))


def _unmerged(graph: MaseGraph) -> Iterator[str]:
    for name, node in called_once(graph).items():
        layer = graph.modules[str(node.target)]
        named = isinstance(layer, LogicNets) and any(layer.config.get(key) for key in AROUND)
        if named and not layer.is_fused:
            yield name


def _plan(graph: MaseGraph, key: str, table: Any) -> tuple[fx.Node, list[fx.Node], list[fx.Node]]:
    """Return the node and the nodes to merge before and after it, or raise an error."""
    config = without_na(config_in(table))
    node = _node(graph, key)
    layer = graph.modules[str(node.target)] if node.op == "call_module" else None
    if not isinstance(layer, LogicNets):
        raise PassArgsError(
            f"node {key!r} is not a LogicNets layer; quantize it with name = 'logicnets'"
        )
    if len(sync.calls(graph)[layer]) > 1:
        raise PassArgsError(f"node {key!r}: other nodes call its layer too; leave it out")
    names = [list(config.get(k) or layer.config.get(k) or ()) for k in AROUND]
    before, after = ([_node(graph, name) for name in part] for part in names)
    for first, second in itertools.pairwise([*before, node, *after]):
        if not follows(first, second):
            raise PassArgsError(
                f"{key!r}: {second.name!r} does not follow {first.name!r} alone; "
                f"name the layers in the order in which they are computed"
            )
    for part in (*before, *after):
        if part.op != "call_module":
            raise PassArgsError(
                f"{key!r}: {part.name!r} does not call a module and cannot be merged"
            )
        if not is_rows(graph, part):
            shape = mase(part).common.results.tensor("data_out_0").shape
            raise PassArgsError(f"{key!r}: {part.name!r} normalises {shape}, not rows of features")
    return node, before, after


def _node(graph: MaseGraph, name: str) -> fx.Node:
    try:
        return get_node_by_name(graph.fx_graph, name)
    except UnknownNode as error:
        raise PassArgsError(str(error)) from None


@graph_pass("emit_logicnets", "transform", needs=("common",))
def emit_logicnets_transform_pass(
    graph: MaseGraph,
    *,
    project_dir: OutputPath | None = None,
    top_name: str = "top",
    clock_period: PositiveFloat = EmitOptions.clock,
) -> dict[str, Any]:
    """Turn a network with LogicNets layers into a circuit, and write all of its files.

    Each neuron is a truth table in logic, and the circuit takes a new sample with every clock. The
    module `top_name` and its parts go to `hardware/rtl` in `project_dir`, by default
    `mase_output/<top>`. `clock_period` is in ns. Merge norms and activations with
    logicnets_fusion first.
    """
    if not any(isinstance(layer, LogicNets) for layer in graph.model.modules()):
        raise PassArgsError(
            "the graph has no LogicNets layer; run quantize with name = 'logicnets' first, or emit "
            "it with ch emit"
        )
    project = HardwareProject.at(project_dir, top_name)
    integers = integer_graph(graph)
    try:
        circuit = unrolled_circuit(integers, clock_period=clock_period, top=top_name)
    except ValueError as error:
        raise PassArgsError(str(error)) from error
    rest = Emission(project, circuit, integers, frozenset({"components", "memories"}))
    written = rest.write(graph, "top")
    return {**written, "files": sorted(circuit.files), "latency_cycles": circuit.latency}


emit_logicnets_transform_pass.law(check_top_name)
