"""Update metadata after a graph changed, and delete unused modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import fx, nn

from chop.hardware.emit import DEFAULT_PARALLELISM
from chop.ir.dotted import deepsetattr
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import CommonMeta, MaseMetadata, Operands, mase
from chop.ir.operands import bind_operands
from chop.ir.ops import identify
from chop.passes.base import has_metadata
from chop.passes.graph.describe.common import annotate_graph, described_parameter
from chop.passes.graph.describe.formats import node_formats, note_formats, operand_parameters
from chop.passes.graph.describe.hardware import renote_hardware
from chop.passes.graph.describe.software import tensors_in


def calls(graph: MaseGraph) -> dict[nn.Module, list[fx.Node]]:
    """Each module that is called -> the nodes that call it, in order."""
    callers: dict[nn.Module, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            callers.setdefault(graph.modules[str(node.target)], []).append(node)
    return callers


def read_modules(graph: MaseGraph) -> set[nn.Module]:
    """The modules with parameters or buffers that nodes read directly, besides their forward."""
    targets = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    owners = {target.rpartition(".")[0] for target in targets}
    return {graph.modules[owner] for owner in owners if owner in graph.modules}


def own_copy(layer: nn.Module) -> nn.Module:
    """Copy a layer's attribute dicts so that other graphs keep theirs; tensors are shared.

    A graph shares its layers with the model that it was traced from.
    """
    new = type(layer).__new__(type(layer))
    vars(new).update(own_attributes(layer))
    return new


def own_attributes(layer: nn.Module) -> dict[str, Any]:
    """Return the attributes of a layer with copies of its tables, but not of its hooks.

    Hooks are shared, so that the handle of a hook still removes it.
    """
    return {
        key: value.copy() if isinstance(value, dict) and "_hooks" not in key else value
        for key, value in vars(layer).items()
    }


def exchange(graph: MaseGraph, nodes: Iterable[fx.Node], new: nn.Module) -> None:
    """Make `nodes`, all callers of some module, call `new` instead."""
    for node in nodes:
        rounded = bool(node_formats(node))
        old = graph.modules[str(node.target)]
        if old is not new:
            deepsetattr(graph.model, str(node.target), new)
        note_module(graph, node)
        if rounded and not node_formats(node):
            note_formats(node)  # its inputs are no longer rounded
            renote_hardware(graph, node)


def note_module(graph: MaseGraph, node: fx.Node) -> None:
    """Record op, operands and parameters of the module that `node` calls now."""
    meta = mase(node)
    old, spec = meta.common, identify(node, meta.module)
    args, kwargs = (fx.node.map_arg(part, known) for part in (node.args, node.kwargs))
    bound = Operands(bind_operands(node, spec, meta.module, args, kwargs))  # type: ignore[arg-type]
    recorded = old.get("args", Operands())
    data = {name: recorded.get(name, value) for name, value in bound.items()}
    keeping = any("value" in tensor for _, tensor in old.results.tensors())
    keep = (lambda p: p.detach().clone()) if keeping else None
    named = operand_parameters(meta.module) if meta.module is not None else ()
    parameters = {name: described_parameter(p, keep) for name, p in named}
    meta.parameters.common = CommonMeta(
        mase_type=spec.mase_type, mase_op=spec.name, args=data | parameters, results=old.results
    )
    if node_formats(node):
        note_formats(node)
    if has_metadata(node, "software"):
        stats: dict[str, Any] = meta.software.get("args", {})
        # statistics of changed parameters are invalid
        meta.software.args = {  # type: ignore[assignment]
            name: stats[name] if name.startswith("data_in") and name in stats else {"stat": {}}
            for name in tensors_in(node)
        }
    renote_hardware(graph, node)


def add_metadata(graph: MaseGraph, node: fx.Node, results: Operands) -> None:
    """Create metadata for a new node with `results`, in the parts that its neighbours have."""
    like = mase(node.next if "mase" in node.next.meta else node.prev)
    meta = node.meta["mase"] = MaseMetadata(node)
    meta.common.results = results
    if like.software:
        stats: dict[str, Any] = {name: {"stat": {}} for name, _ in results.tensors()}
        meta.parameters["software"] = {"args": {}, "results": stats}
    if "parallelism" in like.hardware:
        implicit = identify(node, meta.module).mase_type == "implicit_func"
        meta.parameters["hardware"] = {
            "is_implicit": implicit,
            "device_id": 0 if implicit else -1,
            "parallelism": list(like.hardware.parallelism),
            "max_parallelism": like.hardware.get("max_parallelism", DEFAULT_PARALLELISM),
            **({} if implicit else {"verilog_param": {}}),
        }
    note_module(graph, node)


def known(source: fx.Node) -> Any:
    """The recorded result of a node, with tensors as TensorMeta."""
    results = mase(source).common.get("results", Operands())
    tensors = dict(results.tensors())
    values = [tensors.get(name, entry.get("value")) for name, entry in results.items()]
    return values[0] if len(values) == 1 else values


def take_results(node: fx.Node, source: fx.Node) -> None:
    """Record that `node` now gives the results of `source`."""
    mase(node).common.results = mase(source).common.results.clone()
    if has_metadata(node, "software") and "results" in mase(source).software:
        mase(node).software.results = mase(source).software.results.clone()


def bypass(graph: MaseGraph, node: fx.Node, source: fx.Node) -> None:
    """Remove a node; its users read `source` instead."""
    node.replace_all_uses_with(source)
    graph.fx_graph.erase_node(node)


def outer_names(name: str) -> list[str]:
    """The enclosing modules of a dotted name.

    >>> outer_names("layer1.0.conv")
    ['layer1', 'layer1.0']
    """
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def finish(graph: MaseGraph, unused: Iterable[str] = ()) -> None:
    """After nodes were added or removed: delete unused modules, and update the graph's metadata."""
    used = {str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")}
    used |= {outer for name in used for outer in outer_names(name)}
    for target in dict.fromkeys(unused):
        if target not in used:
            graph.model.delete_submodule(target)
    graph.fx_graph.lint()
    graph.model.recompile()
    if all(has_metadata(node, "common") for node in graph.nodes):
        annotate_graph(graph)
