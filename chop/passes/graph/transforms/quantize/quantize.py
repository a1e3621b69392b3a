"""Quantize nodes of a graph: layers are replaced, functions are wrapped, metadata follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS, OpSpec
from chop.numerics import FORMATS, NumberFormat
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.transforms.quantize.config import without_na
from chop.passes.graph.transforms.quantize.quantized_funcs import (
    QuantizedFunction,
    has_function,
    quantized_function,
)
from chop.passes.graph.transforms.quantize.quantized_modules import LAYERS, Quantized, variant
from chop.passes.graph.utils import get_parent_name
from chop.passes.select import select
from chop.registry import UnknownName, unknown

QUANTIZEABLE_OP = tuple(
    op.name
    for op in OPS.values()
    if has_function(op) or (op.quantized and any(cls in LAYERS for cls in op.modules))
)
# what older configs have beside the keys of nodes; it changes nothing here
IGNORED = ("report", "baseline_weight_path", "load_type")

Plan = dict[fx.Node, dict[str, Any]]


@graph_pass("quantize", "transform", needs=("common",))
def quantize_transform_pass(
    graph: MaseGraph,
    *,
    by: Literal["type", "name", "regex_name"],
    default: Mapping[str, Any] | None = None,
    **per_key: Any,
) -> dict[str, Any]:
    """Put nodes into number formats, chosen by op, by name or by regular expression on names.

    Each key has a table `{"config": {"name": format, "data_in_…": …, "weight_…": …}}`; `default` is
    for all other nodes that can be quantized. The name None (in TOML "NA") leaves a node as it is.
    All configs are checked before anything is changed.
    """
    plan = _plan(graph, by, default, per_key)
    changed = {node: _build(graph, node, config) for node, config in plan.items()}
    modules: dict[str, nn.Module] = {}
    for node, new in changed.items():
        if isinstance(new, nn.Module):
            modules[str(node.target)] = new
        else:
            _call(node, new, plan[node])
    for target, module in modules.items():
        parent, name = get_parent_name(target)
        setattr(graph.modules[parent], name, module)
    for node in changed:
        _update_metadata(node)
    graph.fx_graph.lint()
    graph.model.recompile()
    return {"quantized": [node.name for node in changed]}


def _plan(
    graph: MaseGraph, by: Any, default: Mapping[str, Any] | None, per_key: Mapping[str, Any]
) -> Plan:
    """Which nodes get which config; refuses what cannot be meant."""
    configs = {key: node_config(key, table) for key, table in per_key.items() if key not in IGNORED}
    rest = node_config("default", default) if default is not None else None
    for key in configs if by == "type" else ():
        if key in OPS and key not in QUANTIZEABLE_OP:
            raise PassArgsError(
                f"pass 'quantize': op {key!r} cannot be quantized; "
                f"these can: {', '.join(QUANTIZEABLE_OP)}"
            )
    try:
        chosen = select(graph, by, configs)
    except (UnknownName, ValueError) as error:
        raise PassArgsError(f"pass 'quantize': {error}") from None
    plan: Plan = {}
    for node in graph.nodes:
        config = configs[chosen[node]] if node in chosen else rest
        if config is None or config["name"] is None:
            continue
        if mase(node).common.mase_op in QUANTIZEABLE_OP:
            plan[node] = config
        elif by == "name" and node in chosen:
            raise PassArgsError(
                f"pass 'quantize': node {node.name!r} is {mase(node).common.mase_op}, which cannot "
                f"be quantized; these ops can: {', '.join(QUANTIZEABLE_OP)}"
            )
    _check_shared(plan)
    return plan


def node_config(key: str, table: Any) -> dict[str, Any]:
    """The `config` of a key; a plain dict with a name counts as one."""
    config = table.get("config", table) if isinstance(table, Mapping) else None
    if not isinstance(config, Mapping) or "name" not in config:
        raise PassArgsError(
            f"pass 'quantize': {key!r} needs a table {{'config': {{'name': a format, …}}}}, "
            f"not {table!r:.80}"
        )
    checked: dict[str, Any] = without_na(config)
    if checked["name"] is not None and checked["name"] not in FORMATS:
        reason = unknown("number format", checked["name"], sorted(FORMATS))
        raise PassArgsError(f"pass 'quantize': {key!r}: {reason}")
    return checked


def _check_shared(plan: Plan) -> None:
    """One module cannot be in two formats."""
    seen: dict[str, fx.Node] = {}
    for node, config in plan.items():
        if node.op != "call_module":
            continue
        first = seen.setdefault(str(node.target), node)
        if plan[first] != config:
            raise PassArgsError(
                f"pass 'quantize': nodes {first.name!r} and {node.name!r} call the same module "
                f"{node.target!r}; give them the same config"
            )


def _build(
    graph: MaseGraph, node: fx.Node, config: dict[str, Any]
) -> nn.Module | QuantizedFunction:
    """What takes the node's place; nothing is changed yet."""
    fmt = FORMATS[config["name"]]
    try:
        if node.op == "call_module":
            return quantized_layer(graph.modules[str(node.target)], config)
        new = quantized_function(_target(node), OPS[mase(node).common.mase_op], fmt)
        new.formats(config)
        return new
    except (ValueError, TypeError, KeyError) as error:
        raise PassArgsError(f"pass 'quantize', node {node.name!r}: {error}") from error


def quantized_layer(layer: nn.Module, config: Mapping[str, Any]) -> Quantized:
    """The quantized form of a layer, quantized already or not."""
    cls = next((LAYERS[base] for base in type(layer).__mro__ if base in LAYERS), None)
    if cls is None:
        raise TypeError(f"{type(layer).__name__} has no quantized form")
    return variant(cls, FORMATS[config["name"]]).from_float(layer, config)


def _target(node: fx.Node) -> Any:
    """The float function of a node; for a method, torch.Tensor's function of that name."""
    if isinstance(node.target, QuantizedFunction):
        return node.target.target
    if node.op == "call_method":
        return getattr(torch.Tensor, str(node.target))
    return node.target


def _call(node: fx.Node, function: QuantizedFunction, config: dict[str, Any]) -> None:
    # the node stays the same, and so do its name, its users and its metadata
    node.op = "call_function"
    node.target = function
    node.kwargs = {**node.kwargs, "config": config}


def _update_metadata(node: fx.Node) -> None:
    meta = mase(node)
    spec: OpSpec = OPS[meta.common.mase_op]
    formats = node_formats(node)
    args, results = meta.common.args, meta.common.results
    named = [name for name in ("weight", "bias") if name in args and name in spec.quantized]
    data = [operand for operand in spec.quantized if operand not in named]
    if meta.module is not None:
        data = [operand for operand in spec.quantized if operand == "data_in"]
    for i, operand in enumerate(data):
        if f"data_in_{i}" in args and operand in formats:
            args.tensor(f"data_in_{i}").format = formats[operand]
    for name in named:
        if name in formats:
            args.tensor(name).format = formats[name]
    out = formats.get("data_out") or (formats.get("data_in") if spec.name == "relu" else None)
    if out is not None and "data_out_0" in results:
        results.tensor("data_out_0").format = out


def node_formats(node: fx.Node) -> dict[str, NumberFormat]:
    """The formats in which a quantized node computes, by operand; none for a float node."""
    module = mase(node).module
    if isinstance(module, Quantized):
        return module.formats
    if isinstance(node.target, QuantizedFunction):
        return node.target.formats(node.kwargs["config"])  # type: ignore[arg-type]
    return {}
