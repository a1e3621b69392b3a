"""Quantize nodes of a graph: layers are replaced, functions are wrapped, metadata follows."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import fx, nn

from chop.dotted import deepsetattr
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS, OpNames, module_op
from chop.numerics import FORMATS, NumberFormat
from chop.numerics.affine import CALIBRATED
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.describe.formats import dtype_of, note_formats, operands_of
from chop.passes.graph.describe.hardware import renote_hardware
from chop.passes.graph.describe.left_out import (
    readers_that_compute,
    warn_of_left_out,
    weights_of_nodes,
)
from chop.passes.graph.transforms.adapters import adapter_of, refuse_adapters
from chop.passes.graph.transforms.metadata_sync import note_module
from chop.passes.graph.transforms.quantize import quantized_funcs as funcs
from chop.passes.graph.transforms.quantize import variants
from chop.passes.graph.transforms.quantize.calibrated import (
    ACTIVATIONS,
    require_scales,
)
from chop.passes.graph.transforms.quantize.chosen import Chosen, shown
from chop.passes.graph.transforms.quantize.config import (
    OPERANDS,
    config_in,
    layer_formats,
    without_na,
)
from chop.passes.graph.transforms.quantize.marks import without_marks
from chop.passes.graph.transforms.quantize.quantized_funcs import QuantizedFunction, float_target
from chop.passes.graph.transforms.quantize.quantized_modules import (
    Quantized,
    has_layer,
    layer_for,
    variant,
)
from chop.passes.graph.transforms.quantize.resolve import Resolver
from chop.passes.graph.transforms.quantize.variants import is_variant
from chop.passes.options import InputPath, NodeChoice, Problem
from chop.passes.select import By, select
from chop.registry import UnknownName

logger = logging.getLogger(__name__)

QUANTIZEABLE_OP = OpNames(
    lambda op: funcs.has_function(op) or (bool(op.quantized) and has_layer(op))
)
# keys of a config that are not keys of nodes, and that only layers ignore
NO_BASELINE = (None, "", "NA")
IGNORED = ("report", "baseline_weight_path", "load_type")
# layers that are quantised as a whole, with roundings between their inputs and results
ROUND_INSIDE = ("attention", "rnn", "lstm", "gru", "rnn_cell", "lstm_cell", "gru_cell")
MAX_NAMED = 4  # nodes in a warning

Plan = dict[fx.Node, dict[str, Any]]


@graph_pass("quantize", "transform", needs=("common",))
def quantize_transform_pass(
    graph: MaseGraph,
    *,
    by: By,
    default: Mapping[str, Any] | None = None,
    baseline_weight_path: InputPath | None = None,
    load_type: str = "mz",
    **per_key: Any,
) -> dict[str, Any]:
    """Quantise nodes to number formats, chosen by op, by name or by regular expression on names.

    Each key has a table `{"config": {"name": format, "data_in_…": …, "weight_…": …}}`; `default` is
    for all other nodes that can be quantized. The name None (in TOML "NA") leaves a node as it is.
    A fraction width "calibrated" is chosen from the values of a weight, or from the histogram of an
    activation, which the pass `calibrate` makes. The table of what was chosen is logged.
    All configs are checked before anything is changed. LogicNets layers that are not chosen by name
    look up the layers that follow them, here or in the saved graph at `baseline_weight_path`.
    """
    asked = _plan(graph, by, default, per_key)
    plan, chosen = resolved(graph, asked)
    warn_of_float(graph)
    if by != "name":
        plan |= _with_neighbours(graph, plan, baseline_weight_path)
    return apply_plan(graph, asked, plan, chosen)


def _raise_scales(asked: Plan, changed: Mapping[fx.Node, Any]) -> None:
    """Raise the weight scales of channels whose bias would not fit, and say of which nodes."""
    raised: dict[str, int] = {}
    for node, layer in changed.items():
        if isinstance(layer, Quantized):
            made = asked[node].get("weight_scale", CALIBRATED) == CALIBRATED
            if count := layer.raise_scale_for_bias(made=made):
                raised[node.name] = count
    if not raised:
        return
    named = ", ".join(f"{name} ({count})" for name, count in raised.items())
    logger.warning(
        "pass 'quantize': weight scales were raised, as 32 bits would not hold the bias and the "
        "sum in steps of input times weight; nodes, with the number of scales: %s",
        named,
    )


@quantize_transform_pass.law
def _laws(options: Mapping[str, Any]) -> Iterator[Problem]:
    yield from wrong_configs(options)
    if options["load_type"] != "mz" and options["baseline_weight_path"] not in NO_BASELINE:
        yield Problem(
            "load_type",
            f"load_type of a baseline is mz, not {options['load_type']!r}: only a saved graph says "
            f"which layers follow; save one with save_mase_graph",
        )


def per_key(options: Mapping[str, Any]) -> dict[str, Any]:
    """The tables by op, name or expression among the options of `quantize`."""
    others = ("by", "default", *IGNORED)
    return {key: table for key, table in options.items() if key not in others}


def wrong_configs(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the tables that are not a config of a format."""
    tables = per_key(options)
    if options["default"] is not None:
        tables["default"] = options["default"]
    for key, table in tables.items():
        try:
            node_config(key, table)
        except PassArgsError as error:
            yield Problem(key, str(error))


def chosen_nodes(
    options: Mapping[str, Any], ops: Collection[str], must_match: bool
) -> Iterator[NodeChoice]:
    """Yield the nodes that the tables are for."""
    for key in per_key(options) if "by" in options else ():
        by = options["by"]
        yield NodeChoice(key, by, key, ops, "quantised", or_module=True, must_match=must_match)


quantize_transform_pass.chooses(partial(chosen_nodes, ops=QUANTIZEABLE_OP, must_match=True))


def _plan(
    graph: MaseGraph, by: Any, default: Mapping[str, Any] | None, per_key: Mapping[str, Any]
) -> Plan:
    """Map nodes to configs; raises an error for keys that match nothing or cannot be quantised."""
    configs = {key: node_config(key, table) for key, table in per_key.items() if key not in IGNORED}
    rest = node_config("default", default) if default is not None else None
    try:
        chosen = select(graph, by, configs, must_match=True)
    except (UnknownName, ValueError) as error:
        raise PassArgsError(f"pass 'quantize': {error}") from None
    plan: Plan = {}
    for node in graph.nodes:
        adapter = adapter_of(node) if by == "type" else None
        config = configs.get(adapter.op if adapter else chosen.get(node, ""), rest)
        if config is None or config["name"] is None:
            continue
        refuse_adapters("quantize", [node])
        reason = why_not_quantized(node)
        if reason is None:
            plan[node] = config
        elif by == "name" and node in chosen:
            raise PassArgsError(f"pass 'quantize': node {node.name!r} {reason}")
    _check_shared(graph, plan)
    return {node: _with_statistics(node, config) for node, config in plan.items()}


def resolved(graph: MaseGraph, plan: Plan) -> tuple[Plan, list[Chosen]]:
    """Return the configs with numbers for what they leave to calibration, and what was chosen."""
    resolver = Resolver(graph)
    try:
        return resolver.plan(plan)
    except ValueError as error:
        at = _first_unresolved(resolver, plan, str(error))
        raise PassArgsError(f"pass 'quantize'{at}: {error}") from error


def apply_plan(graph: MaseGraph, asked: Plan, plan: Plan, chosen: list[Chosen]) -> dict[str, Any]:
    """Quantise nodes as `plan` says, which has numbers for what `asked` leaves to calibration."""
    changed = {node: quantized_form(graph, node, config) for node, config in plan.items()}
    modules: dict[str, nn.Module] = {}
    for node, new in changed.items():
        if isinstance(new, nn.Module):
            modules[str(node.target)] = new
        else:
            call_instead(node, new, plan[node])
    _raise_scales(asked, changed)
    for target, module in modules.items():
        deepsetattr(graph.model, target, module)
    for node in changed:
        note_quantized(graph, node, parameters=is_variant(plan[node]["name"]))
    warn_of_inside([node for node in changed if rounds_inside(node)])
    graph.fx_graph.lint()
    graph.model.recompile()
    info: dict[str, Any] = {"quantized": [node.name for node in changed]}
    return info | ({"calibrated": shown(chosen)} if chosen else {})


def _first_unresolved(resolver: Resolver, plan: Plan, text: str) -> str:
    """Return the node of an error as it stands in messages; empty if the error names it."""
    for node, config in plan.items():
        try:
            resolver.config(node, config)
        except ValueError as error:
            named = str(error) != text or repr(node.name) in text
            return "" if named else f", node {node.name!r}"
    return ""


def _with_neighbours(graph: MaseGraph, plan: Plan, baseline_path: str | Path | None) -> Plan:
    """Add the names of neighbours to configs of layer variants that need them."""
    parts: dict[Any, Plan] = {}
    for node, config in plan.items():
        if node.op != "call_module" or not is_variant(config["name"]):
            continue
        cls = variants.LAYER_VARIANTS.get(f"{mase(node).common.mase_op}_{config['name']}")
        if hasattr(cls, "with_neighbours"):
            parts.setdefault(cls, {})[node] = config
    if not parts:
        return {}
    baseline = _baseline(graph, baseline_path)
    try:
        completed = [cls.with_neighbours(part, graph, baseline) for cls, part in parts.items()]
    except ValueError as error:
        raise PassArgsError(f"pass 'quantize': {error}") from None
    return {node: config for part in completed for node, config in part.items()}


def _baseline(graph: MaseGraph, path: str | Path | None) -> MaseGraph:
    """The graph that defines which layers are neighbours: the saved one, or the pass's graph."""
    if path in NO_BASELINE:
        return graph
    try:
        return MaseGraph.from_checkpoint(path, custom_ops=graph.custom_ops)
    except (OSError, ValueError) as error:
        raise PassArgsError(f"pass 'quantize': baseline_weight_path: {error}") from error


def why_not_quantized(node: fx.Node) -> str | None:
    """Return why a node cannot be quantised, or None if it can."""
    common = mase(node).common
    if common.mase_op not in QUANTIZEABLE_OP:
        these = ", ".join(QUANTIZEABLE_OP)
        return f"is {common.mase_op}, which cannot be quantised; these ops can: {these}"
    if node.op != "call_module" and not funcs.has_function(OPS[common.mase_op]):
        return f"calls {common.mase_op} as a function, and only the layer can be quantised"
    if not any(dtype_of(node, name).is_floating_point for name, _ in common.args.tensors()):
        return "takes no floating-point tensor that could be rounded"  # but sizes, or indices
    return None


def warn_of_float(graph: MaseGraph) -> None:
    """Warn once for a graph of layers and parameters that have no quantized form."""
    left_out = [node for node in weights_of_nodes(graph) if _stays_in_float(node)]
    stays = "stays in float", "stay in float"
    warn_of_left_out(graph, "quantised", left_out, _can_be_quantized, stays)


def rounds_inside(node: fx.Node) -> bool:
    """Whether a quantised node rounds values between its inputs and its results."""
    if isinstance(node.target, QuantizedFunction):
        return node.target.composed is not None
    return mase(node).common.mase_op in ROUND_INSIDE


def warn_of_inside(nodes: Sequence[fx.Node]) -> None:
    """Warn of quantised nodes that neither files nor circuits can hold."""
    if nodes:
        names = [f"{node.name} ({mase(node).common.mase_op})" for node in nodes]
        more = f", … {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        logger.warning(
            "%s%s: values inside are rounded, which no ONNX file and no circuit holds, so that the "
            "network runs in PyTorch only; leave such nodes in float to export it",
            *(", ".join(names[:MAX_NAMED]), more),
        )


def _stays_in_float(node: fx.Node) -> bool:
    readers = readers_that_compute(node) if node.op == "get_attr" else [node]
    return not all(map(_can_be_quantized, readers))


def _can_be_quantized(node: fx.Node) -> bool:
    """Whether an op has a quantized form, or is an adapter to a layer that has one."""
    return mase(node).common.mase_op in QUANTIZEABLE_OP or adapter_of(node) is not None


def node_config(key: str, table: Any) -> dict[str, Any]:
    """Return the `config` of a key; a plain dict with a name counts as one."""
    config = config_in(table)
    if config is None or "name" not in config:
        raise PassArgsError(
            f"pass 'quantize': {key!r} needs a table {{'config': {{'name': a format, …}}}}, "
            f"not {table!r:.80}"
        )
    checked: dict[str, Any] = without_na(config)
    if checked["name"] is None:
        return checked
    try:
        if is_variant(checked["name"]):
            variants.check_variant(checked)
            return checked
        operands = [o for o in OPERANDS if any(k.startswith(f"{o}_") for k in checked)]
        layer_formats(without_marks(checked), operands)
    except (ValueError, TypeError, KeyError) as error:
        raise PassArgsError(f"pass 'quantize': {key!r}: {error}") from error
    return checked


def _check_shared(graph: MaseGraph, plan: Plan) -> None:
    """Check that no module is called by nodes with different configs."""
    first: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        if node.op != "call_module":
            continue
        other = first.setdefault(node.target, node)
        if plan.get(other) != plan.get(node):
            raise PassArgsError(
                f"pass 'quantize': nodes {other.name!r} and {node.name!r} call the same module "
                f"{node.target!r}; give them the same config"
            )


def _with_statistics(node: fx.Node, config: dict[str, Any]) -> dict[str, Any]:
    """The config completed from profiled statistics, where these are single numbers."""
    profiled: dict[str, Any] = {}
    if is_variant(config["name"]):
        return config
    for name, operand in operands_of(node).items():
        stats = mase(node).software.get("args", {}).get(name, {}).get("stat", {})
        for key, (stat, entry) in FORMATS[config["name"]].profiled.items():
            value, place = stats.get(stat, {}).get(entry), f"{operand}_{key}"
            if place in config and config[place] is None and isinstance(value, int | float):
                profiled.setdefault(place, float(value))
    return config | profiled


def quantized_form(
    graph: MaseGraph, node: fx.Node, config: dict[str, Any]
) -> nn.Module | QuantizedFunction:
    """Return what replaces the node; nothing is changed yet."""
    op = mase(node).common.mase_op
    try:
        if node.op == "call_module":
            layer = quantized_layer(graph.modules[str(node.target)], config)
            require_scales(layer.formats, ACTIVATIONS)
            _check_activations(node, layer.formats, operands_of(node))
            return layer
        if is_variant(config["name"]):
            raise TypeError(f"{config['name']} is for layers, but this is a function; leave it out")
        new = funcs.quantized_function(float_target(node), OPS[op], FORMATS[config["name"]])
        require_scales(new.formats(config), OPERANDS)
        _check_activations(node, new.formats(config), operands_of(node, new))
        return new
    except (ValueError, TypeError, KeyError) as error:
        raise PassArgsError(f"pass 'quantize', node {node.name!r}: {error}") from error


def _check_activations(
    node: fx.Node, formats: Mapping[str, NumberFormat], operands: Mapping[str, str | None]
) -> None:
    """Check scales per channel against the recorded shapes of what a node takes and returns."""
    common = mase(node).common
    tensors = [(name, operands.get(name), tensor) for name, tensor in common.args.tensors()]
    result = common.results.get("data_out_0", {})
    for name, operand, tensor in [*tensors, ("data_out", "data_out", result)]:
        fmt = formats.get(operand or "")
        recorded = name.startswith("data_") or node.op != "call_module"
        if fmt is not None and recorded and "shape" in tensor:
            fmt.check_shape(str(operand), tensor.shape)


def quantized_layer(layer: nn.Module, config: Mapping[str, Any]) -> Quantized:
    """Return the quantized form of a layer, which may be quantized already."""
    now = getattr(layer, "variant_name", None)
    if now not in (None, config["name"]):
        raise TypeError(f"the layer is {now} already; start from the original layer")
    if is_variant(config["name"]):
        cls: Any = type(layer)
        op = module_op(cls)
        special = variants.variant_of(op.name if op else cls.__name__, config["name"])
        return special.from_float(layer, config)  # type: ignore[no-any-return]
    generic = layer_for(type(layer))
    if generic is None:
        raise TypeError(f"{type(layer).__name__} has no quantised form")
    return variant(generic, FORMATS[config["name"]]).from_float(layer, config)


def call_instead(node: fx.Node, function: QuantizedFunction, config: dict[str, Any]) -> None:
    """Make a node call the quantized function."""
    # the node stays the same, and so do its name, its users and its metadata
    node.op = "call_function"
    node.target = function
    node.kwargs = {**node.kwargs, "config": config}


def note_quantized(graph: MaseGraph, node: fx.Node, parameters: bool = False) -> None:
    """Update the metadata of a changed node; a variant may have other `parameters`."""
    if parameters:
        note_module(graph, node)
    else:
        note_formats(node)
        renote_hardware(graph, node)
