"""Remove channels and neurons, so that layers become smaller."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import fx, nn

from chop.ir.dotted import deepsetattr, get_parent_name
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import has_trait
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.describe.common import describe_again
from chop.passes.graph.transforms.pruning import methods
from chop.passes.graph.transforms.pruning.channel_atoms import Obstacle, Split
from chop.passes.graph.transforms.pruning.channels import ChannelGraph
from chop.passes.graph.transforms.pruning.masks import renewed
from chop.passes.graph.transforms.pruning.plan import PruneRequest
from chop.passes.graph.transforms.pruning.prune import sparsity_row, sparsity_table
from chop.passes.graph.transforms.pruning.shrink import Places, cut_tensor, shrunk, sides_of
from chop.passes.options import NodeChoice, Problem
from chop.passes.select import By, spellings

logger = logging.getLogger(__name__)


@graph_pass("prune_channels", "transform", needs=("common",))
def prune_channels_transform_pass(
    graph: MaseGraph,
    *,
    sparsity: float | dict[str, float],
    method: str = "l1-norm",
    scope: Literal["local", "global"] = "local",
    by: By = "name",
    seed: int = 0,
) -> dict[str, Any]:
    """Remove the least important share `sparsity` of output channels, and what reads them.

    Layers, their norms and their consumers get new, smaller parameters; the
    result is that of the network without these channels. Channels that an addition ties together
    are removed together and count once; every layer keeps at least one. Layers that cannot shrink,
    such as the last one, stay unchanged; naming one is an error. The metadata describe the
    smaller network.
    """
    table = {"sparsity": sparsity, "method": method, "scope": scope, "by": by}
    request = PruneRequest.read("", table)
    per_node = request.per_node(graph, "prune_channels")
    asked = {str(node.target): value for node, value in per_node.items()}
    channels = ChannelGraph(graph)
    _check_named(graph, channels, request)
    families = _families(channels, asked)
    scores = channel_scores(graph, channels, method, seed)
    if scope == "global":
        families = [[target for family in families for target in family]]
    gone: set[int] = set()
    for family in families:
        gone |= _weakest(channels, family, _budget(channels, family, asked), scores, gone)
    removed = _shrink(graph, channels, gone) if gone else {}
    rows = _rows(channels, asked, removed)
    logger.info("Removed channels:\n%s", sparsity_table(rows))
    reasons = _reasons_to_stay(channels, asked)
    for target, reason in reasons.items():
        logger.info("Kept all channels of %s, as %s", target, reason)
    return {"channels": rows, "removed": removed, "kept": reasons}


@prune_channels_transform_pass.law
def _laws(options: Mapping[str, Any]) -> Iterator[Problem]:
    yield from PruneRequest.problems("", _request_options(options))


@prune_channels_transform_pass.chooses
def _chosen(options: Mapping[str, Any]) -> Iterator[NodeChoice]:
    yield from PruneRequest.choices("", _request_options(options))


def _request_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "seed"}


def _check_named(graph: MaseGraph, channels: ChannelGraph, request: PruneRequest) -> None:
    """Raise an error for layers named by the user that cannot lose channels."""
    if not isinstance(request.sparsity, Mapping) or request.by != "name":
        return
    nodes = {name: node for node, names in spellings(graph.nodes).items() for name in names}
    for key, value in request.sparsity.items():
        node = nodes.get(key)
        if node is None or not value:
            continue
        obstacle = obstacle_to(channels, str(node.target))
        if obstacle is not None:
            raise PassArgsError(
                f"channels of node {node.name!r} cannot be removed, as node "
                f"{obstacle.node.name!r} {obstacle.why}; leave {key!r} out"
            )


def obstacle_to(channels: ChannelGraph, target: str) -> Obstacle | None:
    """Return why none of a layer's channels can be removed, or None."""
    if target not in channels.producers:
        node = next(n for n in channels.graph.nodes if str(n.target) == target)
        op = mase(node).common.mase_op
        if has_trait(op, "inner_products"):
            return Obstacle(node, f"is {op}, which keeps its size")
        return Obstacle(node, "returns the channels that it takes; name the layer before it")
    obstacles = [channels.atoms.obstacle(atom) for atom in channels.outs[target]]
    return obstacles[0] if all(obstacles) else None


def _families(channels: ChannelGraph, asked: Mapping[str, float]) -> list[list[str]]:
    """Layers that share channels, at least one of which was requested."""
    groups = {target: [target] for target in channels.producers}
    first: dict[int, str] = {}
    for target in channels.producers:
        for atom in channels.outs[target]:
            one, other = groups[first.setdefault(channels.atoms.root(atom), target)], groups[target]
            if one is not other:
                one += other
                groups |= dict.fromkeys(other, one)
    distinct = {id(group): group for group in groups.values()}.values()
    wanted = [group for group in distinct if any(asked.get(target) for target in group)]
    for group in wanted:
        first_asked, *others = (target for target in group if target in asked)
        for target in others:
            if asked[target] != asked[first_asked]:
                nodes = channels.producers[first_asked], channels.producers[target]
                raise PassArgsError(
                    f"nodes {nodes[0].name!r} and {nodes[1].name!r} give channels that are added "
                    f"to each other, so they must lose the same ones; give them the same sparsity"
                )
    return wanted


def channel_scores(
    graph: MaseGraph, channels: ChannelGraph, method: str, seed: int
) -> dict[int, float]:
    """Importance of each channel, summed over all layers that give it."""
    scores: dict[int, float] = defaultdict(float)
    for target in channels.producers:
        layer = graph.modules[target]
        weight, dim = methods.scored_tensor(layer, method, target), sides_of(layer).outs["weight"]
        rows = weight.movedim(dim, 0).flatten(1)
        values = methods.METHODS[method](rows, methods.generator_for(seed, target)).tolist()
        # rows of a grouped transposed convolution span all groups
        for atom, value in zip(channels.outs[target], values, strict=False):
            scores[channels.atoms.root(atom)] += value
    return scores


def _classes(channels: ChannelGraph, family: Iterable[str]) -> list[int]:
    """The distinct channels of a family, in the order in which its layers give them."""
    roots = (channels.atoms.root(atom) for target in family for atom in channels.outs[target])
    return list(dict.fromkeys(roots))


def _budget(channels: ChannelGraph, family: list[str], asked: Mapping[str, float]) -> int:
    wanted = [asked[target] for target in family if target in asked]
    return methods.share(max(wanted, default=0.0), len(_classes(channels, family)))


def _weakest(
    channels: ChannelGraph,
    family: list[str],
    count: int,
    scores: Mapping[int, float],
    removed: set[int],
) -> set[int]:
    """Up to `count` removable channels; no layer and no part loses its last channel."""
    groups = {target: channels.outs[target] for target in family} | _parts(channels)
    left = {
        name: Counter(root for a in atoms if (root := channels.atoms.root(a)) not in removed)
        for name, atoms in groups.items()
    }
    sizes = {target: sum(members.values()) for target, members in left.items()}
    givers: dict[int, list[str]] = defaultdict(list)
    for target, members in left.items():
        for root in members:
            givers[root].append(target)
    gone: set[int] = set()
    for root in sorted(_classes(channels, family), key=lambda root: scores[root]):
        if len(gone) == count:
            break
        last = any(sizes[target] == left[target][root] for target in givers[root])
        if last or channels.atoms.obstacle(root) is not None:
            continue
        gone.add(root)
        for target in givers[root]:
            sizes[target] -= left[target][root]
    return gone


def _parts(channels: ChannelGraph) -> dict[str, list[int]]:
    """The parts that channels are split into."""
    return {
        f"{node.name} [{i}]": part.atoms
        for node, split in channels.splits.items()
        for i, part in enumerate(split.parts)
    }


def _shrink(graph: MaseGraph, channels: ChannelGraph, gone: set[int]) -> dict[str, list[int]]:
    """Resize every module; return the removed output channels of each."""

    def kept(atoms: list[int] | None) -> list[int] | None:
        if atoms is None:
            return None
        stay = [i for i, atom in enumerate(atoms) if channels.atoms.root(atom) not in gone]
        return stay if len(stay) < len(atoms) else None

    resize(graph, channels, kept, lambda target, *arguments: shrunk(*arguments))
    describe_again(graph)
    stays = {target: (atoms, kept(atoms)) for target, atoms in channels.outs.items()}
    return {
        target: sorted(set(range(len(atoms))) - set(stay))
        for target, (atoms, stay) in stays.items()
        if stay is not None
    }


def resize(
    graph: MaseGraph,
    channels: ChannelGraph,
    places: Callable[[list[int] | None], list[int] | None],
    make: Callable[[str, nn.Module, Places, Places], nn.Module],
) -> list[str]:
    """Resize every module by `make`, and the sizes in the code; return what changed."""
    changed: list[str] = []
    for target in dict.fromkeys((*channels.outs, *channels.ins)):
        outs, ins = places(channels.outs.get(target)), places(channels.ins.get(target))
        if outs is not None or ins is not None:
            new = make(target, graph.modules[target], outs, ins)
            deepsetattr(graph.model, target, new)
            changed.append(target)
    for node, (dim, size) in channels.resized.items():
        axis = channels.axes[node]
        assert axis is not None
        if (stay := places(axis.atoms)) is not None:
            _write_size(node, dim, size, len(stay))
    for node, split in channels.splits.items():
        stays = [places(part.atoms) for part in split.parts]
        if split.cuts() and any(stay is not None for stay in stays):
            _write_parts(node, split, stays)
    for name, atoms in channels.attributes.items():
        if (stay := places(atoms)) is not None:
            _cut_attribute(graph, name, stay)
    graph.model.recompile()
    return changed


def _write_size(node: fx.Node, dim: int, old: int, new: int) -> None:
    """Update a size in the code, as in view(-1, 512)."""
    listed = len(node.args) == 2 and isinstance(node.args[1], list | tuple)
    sizes: list[Any] = list(node.args[1] if listed else node.args[1:])  # type: ignore[arg-type]
    assert sizes[dim] == old, f"{node} has the size {sizes[dim]} where {old} was found"
    sizes[dim] = new
    node.args = (node.args[0], sizes) if listed else (node.args[0], *sizes)


def _write_parts(node: fx.Node, split: Split, stays: list[list[int] | None]) -> None:
    """Write the sizes of a split's parts, which may differ now."""
    pairs = zip(split.parts, stays, strict=True)
    sizes = [len(part.atoms if stay is None else stay) for part, stay in pairs]
    node.target = "split" if node.op == "call_method" else torch.split
    node.args, node.kwargs = (node.all_input_nodes[0], sizes), {"dim": split.dim}


def _cut_attribute(graph: MaseGraph, name: str, kept: list[int]) -> None:
    """Cut a tensor that a function reads; its owner is copied, as another model may share it."""
    parent, last = get_parent_name(name)
    owner = renewed(graph.modules[parent]) if parent else graph.model
    cut_tensor(owner, last, 0, kept)
    if parent:
        deepsetattr(graph.model, parent, owner)


def _rows(
    channels: ChannelGraph, asked: Mapping[str, float], removed: Mapping[str, list[int]]
) -> dict[str, dict[str, Any]]:
    """For each layer: requested sparsity, removed channels, and their number before."""
    counts = {t: (len(removed.get(t, ())), len(channels.outs[t])) for t in channels.producers}
    nodes = channels.producers
    return {nodes[t].name: sparsity_row(asked.get(t), *counts[t]) for t in nodes}


def _reasons_to_stay(channels: ChannelGraph, asked: Mapping[str, float]) -> dict[str, str]:
    """Why requested layers keep all their channels."""
    obstacles = {target: obstacle_to(channels, target) for target, value in asked.items() if value}
    return {t: f"node {o.node.name!r} {o.why}" for t, o in obstacles.items() if o is not None}
