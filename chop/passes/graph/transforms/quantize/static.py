"""Static quantisation: fixed scales for activations, as the integer kernels of runtimes need."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Annotated, Any

from annotated_types import Interval
from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS, has_trait
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.describe.moves import moved, source
from chop.passes.graph.transforms.quantize.observed import has_histograms, observed
from chop.passes.graph.transforms.quantize.quantize import (
    Plan,
    apply_plan,
    resolved,
    why_not_quantized,
)
from chop.passes.graph.transforms.quantize.scales_from_values import affine_keys

logger = logging.getLogger(__name__)

Width = Annotated[int, Interval(ge=2, le=16)]
Config = dict[str, Any]
Site = tuple[fx.Node, str]  # a node and the operand in which it rounds a value

SUMS = ("add", "sub")
PRODUCTS = ("mul", "matmul", "bmm", "mm", "baddbmm")


@graph_pass("quantize_static", "transform", needs=("common",))
def quantize_static_transform_pass(
    graph: MaseGraph, *, weight_width: Width = 8, data_in_width: Width = 8,
    power_of_two: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Quantise layers, sums and pools to `affine` with the scales that `calibrate` finds.

    Weights have a scale for each output channel, activations one for each tensor. What a sum adds
    has one scale, and is rounded where it is computed, so that sums and the layers beside them need
    no rounding of their own. Attention, recurrent layers, norms and other functions stay in float.
    """
    if not has_histograms(graph):
        raise PassArgsError("pass 'quantize_static' needs the ranges of activations; run calibrate")
    activation = {"name": "affine", "data_in_width": data_in_width, "power_of_two": power_of_two}
    plan: Plan = {}
    for node in graph.nodes:
        config = _config(node, activation, weight_width)
        if config is not None and why_not_quantized(node) is None:
            plan[node] = config
    _warn_of_functions(graph)
    _share_scales(graph, plan, activation)
    return apply_plan(graph, plan, *resolved(graph, plan))


def _config(node: fx.Node, activation: Config, weight_width: int) -> Config | None:
    """Return the config of a node, with scales that are left to calibration; None: in float."""
    op = mase(node).common.mase_op
    if has_trait(op, "weighted_sum"):
        axis = 1 if has_trait(op, "transposed") else 0
        config = activation | {"weight_width": weight_width, "weight_axis": axis}
        return config if node.op == "call_module" else None
    if op in PRODUCTS and "weight" in OPS[op].quantized:
        return activation | {"weight_width": activation["data_in_width"]}
    return activation if op in (*SUMS, *PRODUCTS) or has_trait(op, "pool") else None


def _warn_of_functions(graph: MaseGraph) -> None:
    """Say which products are calls of functions, whose weights have no layer that rounds them."""
    ops = ((node, mase(node).common.mase_op) for node in graph.nodes if node.op != "call_module")
    if names := [node.name for node, op in ops if has_trait(op, "weighted_sum")]:
        logger.warning(
            "pass 'quantize_static': %s stay in float, as they are functions with weights; call a "
            "layer of torch.nn there, or use quantize with scales for weight and bias",
            ", ".join(names),
        )


def _share_scales(graph: MaseGraph, plan: Plan, activation: Config) -> None:
    """Round what sums add where it is computed, with one scale for all that is added together."""
    for sites in _groups(graph, plan):
        keys = [_rounding(site, activation) for site in sites]
        scale = max(key[f"{operand}_scale"] for key, (_, operand) in zip(keys, sites, strict=True))
        for key, (node, operand) in zip(keys, sites, strict=True):
            key[f"{operand}_scale"] = scale
            plan[node] = plan.get(node, activation) | key
            if operand == "data_in":
                _round_alike(graph, plan, node, key | {"data_in_signed": False})


def _groups(graph: MaseGraph, plan: Plan) -> list[list[Site]]:
    """Return the sites whose values are added to each other; their sums leave the plan."""
    groups: dict[Site, list[Site]] = {
        site: [site] for node in graph.nodes if (site := _padded(graph, node)) is not None
    }
    for node in [node for node in plan if mase(node).common.mase_op in SUMS]:
        sites = [_site(graph, value, plan) for value in node.args[:2]]
        if "alpha" in node.kwargs or len(sites) < 2 or None in sites:
            continue
        del plan[node]
        known = [groups.get(site, [site]) for site in sites if site is not None]
        merged = list(dict.fromkeys(site for group in known for site in group))
        groups |= dict.fromkeys(merged, merged)
    return list({id(group): group for group in groups.values()}.values())


def _padded(graph: MaseGraph, node: fx.Node) -> Site | None:
    """Return the site of a ReLU that is padded for a layer, as runtimes pad floats otherwise."""
    pads = [
        user for user in node.users if moved(user) is node and mase(user).common.mase_op == "pad"
    ]
    is_relu = has_trait(mase(node).common.mase_op, "rectifier")
    return _site(graph, node, {}) if pads and is_relu else None


def _site(graph: MaseGraph, value: Any, plan: Plan) -> Site | None:
    """Return where a value of a sum can be rounded for all that read it; None: in the sum."""
    if not isinstance(value, fx.Node):
        return None
    node = source(value)
    if has_trait(mase(node).common.mase_op, "rectifier") and why_not_quantized(node) is None:
        return (node, "data_in") if _is_called_once(graph, node) else None
    has_weights = node in plan and has_trait(mase(node).common.mase_op, "weighted_sum")
    path = [value]
    while (before := moved(path[-1])) is not None:
        path.append(before)
    alone = all(len(step.users) == 1 for step in path)
    return (node, "data_out") if has_weights and alone and _is_called_once(graph, node) else None


def _is_called_once(graph: MaseGraph, node: fx.Node) -> bool:
    if node.op != "call_module":
        return True
    return len([n for n in graph.nodes if (n.op, n.target) == (node.op, node.target)]) == 1


def _rounding(site: Site, activation: Config) -> Config:
    """Return the keys with which a site rounds its value, by its own histogram."""
    node, operand = site
    config = {key: value for key, value in activation.items() if key != "data_in_width"}
    config[f"{operand}_width"] = activation["data_in_width"]
    keys = affine_keys(observed([node], operand, "affine"), config)
    return {f"{operand}_width": config[f"{operand}_width"], **keys}


def _round_alike(graph: MaseGraph, plan: Plan, relu: fx.Node, keys: Config) -> None:
    """Give layers and pools that read the result of a ReLU its format."""
    for node in _readers(relu):
        if node in plan and mase(node).common.mase_op not in PRODUCTS:
            plan[node] = plan[node] | keys


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the nodes that compute with a value, also after it was moved."""
    for user in node.users:
        if moved(user) is node:
            yield from _readers(user)
        else:
            yield user
