"""Make layers learn the bit widths of their inputs, weights and biases."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from annotated_types import Ge, Le
from torch import Tensor, fx

from chop.ir.dotted import deepsetattr
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OpNames, has_trait, ops_with
from chop.numerics.grid import Overflow, Rounding
from chop.numerics.mixed_integer import Granularity
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.transforms import metadata_sync as sync
from chop.passes.graph.transforms.quantize.fractions import integer_keys
from chop.passes.graph.transforms.quantize.observed import NotCalibrated, observed
from chop.passes.graph.transforms.quantize.quantize import note_quantized, quantized_layer
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized, has_layer
from chop.passes.options import NodeChoice
from chop.passes.select import By, select
from chop.registry import UnknownName

WEIGHTED = tuple(op for op in ops_with("weighted_sum") if not has_trait(op, "transposed"))
LEARNING_OPS = OpNames(
    lambda op: op.name in WEIGHTED or (op.quantized == ("data_in",) and has_layer(op))
)

Width = Annotated[int, Ge(2), Le(24)]  # float32 holds the codes of 24 bits
Config = dict[str, Any]


@graph_pass("learn_bits", "transform", needs=("common",))
def learn_bits_transform_pass(
    graph: MaseGraph,
    *,
    by: By = "type",
    nodes: Sequence[str] = (),
    width: Width = 8,
    data_in_width: Width | None = None,
    granularity: Granularity = "element",
    data_in_granularity: Granularity = "channel",
    rounding: Rounding = "even",
    overflow: Overflow = "saturate",
) -> dict[str, Any]:
    """Make layers learn the integer and fraction bits of their inputs, weights and biases.

    `by` and `nodes` choose linear layers, convolutions and activation layers; by default all linear
    layers and convolutions. There are bits for each tensor, channel or element: `granularity` is
    that of weights and biases, `data_in_granularity` that of inputs. Numbers start with `width`
    bits, inputs with `data_in_width` if it is given, and with a range that the histograms of the
    pass `calibrate` tell; without them half of the bits of inputs are fraction bits. The layers
    have the format `mixed_integer`; `freeze_bits` makes ordinary quantised layers of them.
    """
    chosen = _chosen(graph, by, nodes)
    start: Config = {
        "name": "mixed_integer",
        "learn": True,
        "rounding": rounding,
        "overflow": overflow,
        "granularity": granularity,
        "weight_width": width,
        "data_in_width": data_in_width or width,
        "data_in_granularity": data_in_granularity,
    }
    configs = {calls: _config(calls, start) for calls in chosen}
    for calls, config in configs.items():
        new = _learning_layer(calls, config)
        deepsetattr(graph.model, str(calls[0].target), new)
        for node in calls:
            note_quantized(graph, node)
    graph.model.recompile()
    return {"learning": [node.name for calls in configs for node in calls]}


@learn_bits_transform_pass.chooses
def _choices(options: Mapping[str, Any]) -> Iterator[NodeChoice]:
    for name in options["nodes"]:
        yield NodeChoice("nodes", options["by"], name, LEARNING_OPS, "learned", or_module=True)


Calls = tuple[fx.Node, ...]  # the nodes that call one layer


def _chosen(graph: MaseGraph, by: By, nodes: Sequence[str]) -> list[Calls]:
    """Return the calls of each layer that is to learn; a layer that cannot is an error."""
    try:
        named = select(graph, by, nodes, must_match=True) if nodes else {}
    except (UnknownName, ValueError) as error:
        raise PassArgsError(str(error)) from None
    if not nodes:
        named = {n: n.name for n in graph.nodes if mase(n).common.mase_op in WEIGHTED}
    for node in named:
        if (reason := why_not_learned(node)) is not None:
            raise PassArgsError(f"node {node.name!r} {reason}")
    layers = [tuple(calls) for calls in sync.calls(graph).values() if named.keys() & {*calls}]
    if not layers:
        raise PassArgsError(
            f"the graph has no layer that can learn its bits; these ops can: "
            f"{', '.join(LEARNING_OPS)}"
        )
    return layers


def why_not_learned(node: fx.Node) -> str | None:
    """Return why a node cannot learn its bits, or None if it can."""
    op, layer = mase(node).common.mase_op, mase(node).module
    if op not in LEARNING_OPS:
        return f"is {op}, which cannot learn its bits; these ops can: {', '.join(LEARNING_OPS)}"
    if node.op != "call_module":
        return f"calls {op} as a function, which has no place for bits; use a layer of torch.nn"
    if getattr(layer, "variant_name", None) is not None:
        return f"is a {layer.variant_name} layer, which has no number format; start from the float"  # type: ignore[union-attr]
    return None


def _config(calls: Calls, start: Config) -> Config:
    """Return the config of a layer: what it starts with, by operand."""
    layer: Any = mase(calls[0]).module
    config = start | _input_keys(calls, start)
    for name in ("weight", "bias"):
        values = getattr(layer, name, None)
        if values is not None and mase(calls[0]).common.mase_op in WEIGHTED:
            if not bool(values.isfinite().all()):
                raise PassArgsError(
                    f"node {calls[0].name!r} has a {name} with NaN or infinite values; train or "
                    f"load it again"
                )
            config[f"{name}_width"] = start["weight_width"]
            config[f"{name}_frac_width"] = _fraction(values, start["weight_width"])
    if "weight_frac_width" not in config:
        del config["weight_width"]
    return config


def _fraction(values: Tensor, width: int) -> int:
    """Return the fraction bits of numbers of a width that just hold the values."""
    largest = float(values.detach().abs().max()) if values.numel() else 0.0
    integer = math.frexp(largest)[1] if largest else 0
    return min(max(width - 1 - integer, -120), 120)


def _input_keys(calls: Calls, start: Config) -> Config:
    """Return the keys of the input: its range by calibration, its sign, and its shape."""
    width = start["data_in_width"]
    asked = {"name": "integer", "data_in_width": width, "data_in_frac_width": "calibrated"}
    try:
        keys = integer_keys(observed(calls, "data_in", "integer"), asked)
    except NotCalibrated:
        positive = all(_is_non_negative(node.all_input_nodes[0]) for node in calls)
        signed = {"data_in_signed": False} if positive else {}
        keys = {"data_in_frac_width": width // 2, **signed}
    shapes = {tuple(mase(node).common.args.tensor("data_in_0").shape[1:]) for node in calls}
    if len(shapes) > 1 and start["data_in_granularity"] == "element":
        raise PassArgsError(
            f"nodes {', '.join(repr(n.name) for n in calls)} call one layer with inputs of "
            f"different shapes; use data_in_granularity 'channel' or 'tensor'"
        )
    return {
        **keys,
        "data_in_sample_shape": [*mase(calls[0]).common.args.tensor("data_in_0").shape[1:]],
    }


def _is_non_negative(node: fx.Node) -> bool:
    """Return whether an activation gives the values, which others only move or choose."""
    op = mase(node).common.mase_op
    while has_trait(op, "no_op") or has_trait(op, "reshape") or op.startswith("max_pool"):
        if not node.all_input_nodes:
            return False
        node = node.all_input_nodes[0]
        op = mase(node).common.mase_op
    return has_trait(op, "non_negative")


def _learning_layer(calls: Calls, config: Config) -> Quantized:
    try:
        new = quantized_layer(mase(calls[0]).module, config)  # type: ignore[arg-type]
    except (ValueError, TypeError, KeyError) as error:
        raise PassArgsError(f"node {calls[0].name!r}: {error}") from error
    source = calls[0].all_input_nodes[0]
    while has_trait(mase(source).common.mase_op, "reshape") and source.all_input_nodes:
        source = source.all_input_nodes[0]
    vars(new)["reads_input"] = source.op == "placeholder"
    return new
