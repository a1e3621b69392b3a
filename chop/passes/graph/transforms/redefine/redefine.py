"""Redefine a network: other widths and depths, such that every choice runs."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import ops_with
from chop.passes.base import GraphPass, PassArgsError, graph_pass, has_metadata
from chop.passes.graph.describe.common import describe_again
from chop.passes.graph.describe.hardware import renote_hardware
from chop.passes.graph.transforms.pruning import prune_channels
from chop.passes.graph.transforms.pruning.channels import ChannelGraph
from chop.passes.graph.transforms.pruning.shrink import Places
from chop.passes.graph.transforms.redefine import sizes, width_requests
from chop.passes.graph.transforms.redefine.blocks import Depth, Weights, change_depth
from chop.passes.graph.transforms.redefine.layers import fresh, inherited
from chop.passes.graph.transforms.redefine.original_widths import Original
from chop.passes.graph.transforms.redefine.sizes import SizeRequest
from chop.passes.graph.transforms.redefine.width_requests import RedefinePlan, WidthRequest
from chop.passes.options import NodeChoice, Problem
from chop.passes.select import By
from chop.registry import unknown

logger = logging.getLogger(__name__)

LINEAR = ("linear",)
CONV = ops_with("convolution")
KINDS = ops_with("weighted_sum")


def _redefining(name: str, kinds: tuple[str, ...], doc: str) -> GraphPass:
    """Return the pass `name`, which redefines layers of these ops; all have the same options."""

    def redefine(
        graph: MaseGraph,
        *,
        by: By = "name",
        default: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        weights: Literal["fresh", "inherit"] = "fresh",
        seed: int = 0,
        **per_key: Any,
    ) -> dict[str, Any]:
        given = {"by": by, "default": default, "weights": weights, "seed": seed, **per_key}
        return _redefine(graph, kinds, given | dict(config or {}))

    redefine.__name__ = redefine.__qualname__ = f"{name}_transform_pass"
    redefine.__doc__ = doc
    registered = graph_pass(name, "transform", needs=("common",))(redefine)
    registered.law(_laws)
    registered.chooses(_chosen)
    return registered


def _tables(options: Mapping[str, Any]) -> dict[str, Any]:
    """The tables by op, name or expression among the options, also those inside `config`."""
    given = {**options, **(options.get("config") or {})}
    others = ("by", "config", "weights", "seed", *width_requests.IGNORED)
    return {k: v for k, v in given.items() if k not in others and v is not None}


def _laws(options: Mapping[str, Any]) -> Iterator[Problem]:
    for key, table in _tables(options).items():
        try:
            WidthRequest.read(key, table)
        except PassArgsError as error:
            yield Problem(key, str(error))


def _chosen(options: Mapping[str, Any]) -> Iterator[NodeChoice]:
    by = {**options, **(options.get("config") or {})}.get("by", "name")
    for key in _tables(options):
        if key != "default" and by in ("type", "regex_name"):
            yield NodeChoice(key, by, key)


redefine_transform_pass = _redefining(
    "redefine",
    KINDS,
    """Change the widths of linear and convolutional layers and the depths of blocks.

    Each key has a table `{"config": {"name": …, "channel_multiplier": 2}}`. "output_only" and
    "both" set how many outputs a layer has, as a multiple of the original network's, or as
    `width`; "input_only" keeps them. Norms, additions and all consumers follow. `repeat` is
    the number of copies of a layer, or of a named module with several. `weights` are "fresh"
    (layers with a new shape are initialised from `seed`) or "inherit" (channels are copied so that
    the function stays the same, or the least important ones are removed). `config` may hold all of
    these tables, as in the labs.
    """,
)
redefine_linear_transform_pass = _redefining(
    "redefine_linear",
    LINEAR,
    "Change the widths of linear layers, as `redefine` does; all other layers follow.",
)
redefine_conv_transform_pass = _redefining(
    "redefine_conv",
    CONV,
    "Change the widths of convolutional layers, as `redefine` does; all other layers follow.",
)


def _redefine(graph: MaseGraph, kinds: Collection[str], given: dict[str, Any]) -> dict[str, Any]:
    by, default, weights, seed = (given.pop(key) for key in ("by", "default", "weights", "seed"))
    for option, value, known in (("by", by, get_args(By)), ("weights", weights, get_args(Weights))):
        if value not in known:
            raise PassArgsError(unknown(option, str(value), known))
    plan = width_requests.read_plan(graph, by, default, given, kinds)
    channels = ChannelGraph(graph)
    depth = Depth(Original.of(graph).with_widths(channels))
    if plan.repeats:
        deepen = functools.partial(
            change_depth, repeats=plan.repeats, original=depth.original, weights=weights
        )
        trial = _shallow_copy(graph)  # errors are found before anything is changed
        tried = deepen(trial, seed=seed, by_name=plan.by_name)
        _settled(ChannelGraph(trial), plan, tried.original)
        depth = deepen(graph, seed=seed, by_name=plan.by_name)
        channels = ChannelGraph(graph)
    change = _settled(channels, plan, depth.original)
    resized = _resize(graph, change, weights, seed)
    depth.original.keep(graph)
    if resized or plan.repeats:
        describe_again(graph)
        _forget_statistics(graph)
    return _info(graph, change, depth, resized if weights == "fresh" else [])


def _shallow_copy(graph: MaseGraph) -> MaseGraph:
    """A separate graph on the same layers, on which changes can be tried."""
    new = copy.copy(graph)
    new.model = fx.GraphModule(graph.model, copy.deepcopy(graph.fx_graph))
    new.meta = {"mase": graph.meta["mase"].clone_for(new)}
    for node in new.nodes:
        node.meta = {**node.meta, "mase": mase(node).clone_for(node)}
    return new


@dataclass(frozen=True)
class Change:
    """The copies of each channel in the new network, and the layers that stay as they are."""

    channels: ChannelGraph
    parts: list[sizes.Segment]
    kept: dict[str, str]


def _settled(channels: ChannelGraph, plan: RedefinePlan, original: Original) -> Change:
    original = original.with_widths(channels)
    requests, kept = _requests(channels, plan, original)
    parts = sizes.segments(channels, [request.side for request in requests])
    return Change(channels, parts, kept | sizes.settle(parts, requests))


def _requests(
    channels: ChannelGraph, plan: RedefinePlan, original: Original
) -> tuple[list[SizeRequest], dict[str, str]]:
    """The requested widths in this graph, and why some layers cannot have one."""
    requests: list[SizeRequest] = []
    kept: dict[str, str] = {}
    calls = {str(n.target): n for n in channels.graph.nodes if n.op == "call_module"}
    for target, node in calls.items():
        base = original.copies.get(target, target)
        firm = plan.chosen.get(target) or plan.chosen.get(base)
        choice = firm or plan.others.get(target) or plan.others.get(base) or WidthRequest()
        named = plan.by_name and firm is not None
        if choice.changes_outputs and target not in channels.producers:
            obstacle = prune_channels.obstacle_to(channels, target)
            assert obstacle is not None
            kept[node.name] = f"node {obstacle.node.name!r} {obstacle.why}"
            if named:
                raise PassArgsError(
                    f"node {node.name!r} has no width to choose, as {kept[node.name]}; leave it out"
                )
        elif target in channels.producers:
            requests += _requests_of(node, choice, original, firm is not None, named)
    return requests, kept


def _requests_of(
    node: fx.Node, choice: WidthRequest, original: Original, firm: bool, named: bool
) -> Iterator[SizeRequest]:
    target = str(node.target)
    if choice.changes_outputs:
        width = choice.of(original.outs[target])
        yield SizeRequest(node, ("out", target), width, choice.multiplier, firm, named)
    elif choice.name == "input_only":
        yield SizeRequest(node, ("out", target), original.outs[target], None, firm, named)
        known = original.ins.get(target)
        if choice.multiplier is not None and (known is not None or choice.multiplier != 1):
            width = choice.of(known or 0)
            yield SizeRequest(node, ("in", target), width, choice.multiplier, firm, named)


def _resize(graph: MaseGraph, change: Change, weights: Weights, seed: int) -> list[str]:
    """Resize every module; return the dotted names of those that changed."""
    channels = change.channels
    if all(part.size == len(part.roots) for part in change.parts):
        return []
    inherits = weights == "inherit"
    scores = prune_channels.channel_scores(graph, channels, "l1-norm", seed) if inherits else {}
    counts = sizes.copies(change.parts, scores)

    def make(target: str, layer: nn.Module, outs: Places, ins: Places) -> nn.Module:
        return (inherited if inherits else fresh)(layer, outs, ins, seed, target)

    places = functools.partial(sizes.places, channels, counts)
    return prune_channels.resize(graph, channels, places, make)


def _forget_statistics(graph: MaseGraph) -> None:
    """Delete statistics of the previous network, and update the hardware metadata."""
    for node in graph.nodes:
        if has_metadata(node, "software"):
            for part in ("args", "results"):
                table = mase(node).software.get(part, {})
                for name in table:
                    table[name] = {"stat": {}}
        renote_hardware(graph, node)


def _info(
    graph: MaseGraph, change: Change, depth: Depth, modules: Collection[str]
) -> dict[str, Any]:
    """Summarise the change; `fresh` are the nodes with untrained weights."""
    new = [
        node.name
        for node in graph.nodes
        if node.op == "call_module" and (node.target in modules or node.name in depth.untrained)
    ]
    widths = {}
    for target, node in change.channels.producers.items():
        size = sum(p.size * p.times.get(("out", target), 0) for p in change.parts)
        widths[node.name] = {"original": depth.original.outs.get(target, size), "width": size}
    changed = {n: w["width"] for n, w in widths.items() if w["original"] != w["width"]}
    logger.info("Widths other than the original's: %s", changed or "none")
    logger.info("Layers with new weights: %s", ", ".join(new) or "none")
    return {
        "widths": widths,
        "repeats": dict(depth.original.repeats),
        "fresh": new,
        "kept": change.kept | depth.kept,
    }
