"""The widths and blocks of a network that a search can choose freely."""

from __future__ import annotations

from collections.abc import Collection

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import PassArgsError
from chop.passes.graph.transforms.pruning.channels import ChannelGraph
from chop.passes.graph.transforms.redefine.blocks import containers, find_block
from chop.passes.graph.transforms.redefine.redefine import KINDS
from chop.passes.graph.transforms.redefine.sizes import segments
from chop.passes.graph.transforms.redefine.width_requests import is_layer


def width_groups(graph: MaseGraph, kinds: Collection[str] = KINDS) -> list[list[str]]:
    """Groups of nodes of these ops that can have another width; a group has one width.

    Any one width per group is free of contradictions. Layers with a width that is the sum of others
    are in no group, as they follow, and neither are layers with a fixed width.
    """
    channels = ChannelGraph(graph)
    groups: dict[int, list[str]] = {}
    owner: dict[str, list[int]] = {}
    for index, part in enumerate(segments(channels, ())):
        for (_, target), times in part.times.items():
            fixed = part.obstacle is not None or times > 1
            owner.setdefault(target, []).append(-1 if fixed else index)
    for target, node in channels.producers.items():
        first, *others = owner[target]
        if first >= 0 and not others and is_layer(node, kinds):
            groups.setdefault(first, []).append(node.name)
    return list(groups.values())


def repeatable_blocks(graph: MaseGraph) -> list[str]:
    """Dotted names of modules with several layers that can be repeated and skipped."""
    names = []
    for name in dict.fromkeys(containers(graph).values()):
        try:
            find_block(graph, name)
        except PassArgsError:
            continue
        names.append(name)
    return names
