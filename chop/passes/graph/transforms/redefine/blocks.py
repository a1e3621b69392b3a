"""Depth: a block that keeps its shape can be repeated or skipped."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import has_trait
from chop.passes.base import PassArgsError
from chop.passes.graph.describe.in_place import writes_in_place
from chop.passes.graph.transforms.metadata_sync import finish, outer_names
from chop.passes.graph.transforms.redefine.layers import can_pass_on, pass_on, reset, silence
from chop.passes.graph.transforms.redefine.original_widths import Original
from chop.passes.graph.utils import vf

Weights = Literal["fresh", "inherit"]


@dataclass(frozen=True)
class RepeatableBlock:
    """Consecutive nodes with a single entry and a single exit."""

    name: str
    nodes: list[fx.Node]
    entry: fx.Node
    exit: fx.Node


def containers(graph: MaseGraph) -> dict[str, str]:
    """Containers of layers: dotted name, and its node-style spelling, -> dotted name."""
    targets = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    names = dict.fromkeys(outer for target in targets for outer in outer_names(target))
    return {vf(name): name for name in names} | {name: name for name in names}


def find_block(graph: MaseGraph, name: str) -> RepeatableBlock:
    """The nodes of a layer or module with several, including the residual addition if any."""
    nodes = list(graph.nodes)
    inside = [i for i, node in enumerate(nodes) if _lies_in(node, name)]
    if not inside:
        raise PassArgsError(f"block {name!r} is inside one that is skipped; leave one of them out")
    members = nodes[inside[0] : inside[-1] + 1]
    entries, exits = _ends(members)
    while len(entries) == len(exits) == 1 and _closes(members, entries[0]):
        members = nodes[inside[0] : inside[0] + len(members) + 1]
        entries, exits = _ends(members)
    if len(entries) != 1 or len(exits) != 1:
        raise PassArgsError(
            f"block {name!r} has {len(entries)} inputs and {len(exits)} results; only one with a "
            f"single input and a single result can be repeated or skipped"
        )
    shape_in, shape_out = (
        mase(node).common.results["data_out_0"]["shape"] for node in (entries[0], exits[0])
    )
    if shape_in != shape_out:
        raise PassArgsError(
            f"block {name!r} takes {shape_in} and gives {shape_out}; only one that keeps its "
            f"shape can be repeated or skipped"
        )
    return RepeatableBlock(name, members, entries[0], exits[0])


def _lies_in(node: fx.Node, name: str) -> bool:
    target = str(node.target)
    return node.op == "call_module" and (target == name or target.startswith(f"{name}."))


def _ends(members: list[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    inside = set(members)
    taken = dict.fromkeys(n for node in members for n in node.all_input_nodes)
    entries = [node for node in taken if node not in inside and node.op != "get_attr"]
    return entries, [node for node in members if any(user not in inside for user in node.users)]


def _closes(members: list[fx.Node], entry: fx.Node) -> bool:
    """Whether the next node adds the block's input to its output."""
    last, following = members[-1], members[-1].next
    both = set(following.all_input_nodes) == {entry, last} and list(last.users) == [following]
    return both and following.op in ("call_function", "call_method")


@dataclass(frozen=True)
class Depth:
    """Result of changing depths: what to remember, untrained nodes, and unchanged blocks."""

    original: Original
    untrained: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)


def change_depth(
    graph: MaseGraph,
    repeats: Mapping[str, int],
    original: Original,
    weights: Weights,
    seed: int,
    *,
    by_name: bool,
) -> Depth:
    """Repeat every block as often as requested; raises an error for a named one that cannot be."""
    untrained: list[str] = []
    unchanged: dict[str, str] = {}
    for name, wanted in repeats.items():
        count = original.repeats.get(name, 1)
        try:
            for index in range(count, wanted, -1):
                _skip(graph, find_block(graph, _called(name, index - 1)))
            for index in range(count, wanted):
                block = find_block(graph, _called(name, index - 1))
                new, renamed = _repeated(graph, block, name, index)
                original = original.with_copies(renamed)
                untrained += _initialise(new, weights, seed)
        except PassArgsError as error:
            if by_name:
                raise
            unchanged[vf(name)] = str(error)
        else:
            original = original.with_repeat(name, wanted)
    if repeats:
        finish(graph)
    return Depth(original, untrained, unchanged)


def _called(name: str, index: int) -> str:
    """Return the dotted name of a copy; 0 is the block itself.

    >>> _called("layer1.1", 0), _called("layer1.1", 2)
    ('layer1.1', 'layer1.1_repeat2')
    """
    return f"{name}_repeat{index}" if index else name


def _skip(graph: MaseGraph, block: RepeatableBlock) -> None:
    _check_overwriting(block)
    targets = [str(node.target) for node in block.nodes if node.op == "call_module"]
    block.exit.replace_all_uses_with(block.entry)
    for node in reversed(block.nodes):
        graph.fx_graph.erase_node(node)
    finish(graph, unused=[*targets, block.name])


def _check_overwriting(block: RepeatableBlock) -> None:
    """Check that skipping does not let an in-place node overwrite what other nodes read."""
    inside = set(block.nodes)
    readers = [node for node in block.entry.users if node not in inside]
    for user in block.exit.users:
        if user not in inside and readers and writes_in_place(user):
            raise PassArgsError(
                f"block {block.name!r} cannot be skipped, as node {user.name!r} works in place and "
                f"would overwrite what node {readers[0].name!r} reads; set its inplace to False"
            )


def _repeated(
    graph: MaseGraph, block: RepeatableBlock, name: str, index: int
) -> tuple[RepeatableBlock, dict[str, str]]:
    """Insert a copy of a block after it; return it and copied module -> original module."""
    users = [user for user in block.exit.users if user not in set(block.nodes)]
    env: dict[fx.Node, fx.Node] = {block.entry: block.exit}
    renamed: dict[str, str] = {}
    anchor = block.nodes[-1].next
    with graph.fx_graph.inserting_before(anchor):
        for node in block.nodes:
            target = node.target
            if node.op == "call_module":
                target = _copied_module(graph, block, str(target), _called(name, index), renamed)
            env[node] = _copied_node(graph, node, target, env)
    nodes = [env[node] for node in block.nodes]
    for user in users:
        user.replace_input_with(block.exit, env[block.exit])
    return RepeatableBlock(_called(name, index), nodes, block.exit, env[block.exit]), renamed


def _copied_node(
    graph: MaseGraph, node: fx.Node, target: Any, env: Mapping[fx.Node, fx.Node]
) -> fx.Node:
    args, kwargs = (
        fx.node.map_arg(part, lambda n: env.get(n, n)) for part in (node.args, node.kwargs)
    )
    name = vf(target) if node.op == "call_module" else node.name
    new = graph.fx_graph.create_node(node.op, target, args, kwargs, name, node.type)  # type: ignore[arg-type]
    new.meta = {**node.meta, "mase": mase(node).clone_for(new)}
    return new


def _copied_module(
    graph: MaseGraph, block: RepeatableBlock, target: str, called: str, renamed: dict[str, str]
) -> str:
    inside = target == block.name or target.startswith(f"{block.name}.")
    new = called + target[len(block.name) :] if inside else f"{target}_{vf(called)}"
    if new in renamed:
        return new
    module = graph.modules[target]
    graph.model.add_submodule(new, copy.deepcopy(module))
    for outer in outer_names(new):
        if outer.startswith(called):
            graph.modules[outer].training = module.training
    renamed[new] = target
    return new


def _initialise(block: RepeatableBlock, weights: Weights, seed: int) -> list[str]:
    """Initialise a copy: fresh weights, or such that the network's function stays the same.

    Returns the nodes with untrained weights.
    """
    learnt = [n for n in block.nodes if (m := mase(n).module) is not None and [*m.parameters()]]
    if weights == "inherit" and (_silent_branch(block) or _chain(block)):
        return []
    for node in learnt if weights == "fresh" else ():
        reset(mase(node).module, seed, str(node.target))  # type: ignore[arg-type]
    return [node.name for node in learnt]


def _silent_branch(block: RepeatableBlock) -> bool:
    """Zero the residual branch of a block if it has one; return whether it does."""
    for position, node in enumerate(block.nodes):
        if mase(node).common.mase_op != "add" or block.entry not in node.all_input_nodes:
            continue
        others = [n for n in node.all_input_nodes if n is not block.entry]
        if len(others) != 1 or not _only_idempotent(block.nodes[position + 1 :]):
            return False
        module: Any = mase(others[0]).module
        kinds = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | _BatchNorm
        if not isinstance(module, kinds) or module.weight is None:
            return False
        silence(module)
        return True
    return False


def _chain(block: RepeatableBlock) -> bool:
    """Make a layer, its norm and its activation the identity if possible; return whether it is."""
    first, *rest = block.nodes
    norms = [n for n in rest[:1] if isinstance(mase(n).module, _BatchNorm)]
    layer = mase(first).module
    straight = all(n.all_input_nodes == [m] for m, n in zip(block.nodes, rest, strict=False))
    plain = straight and _only_idempotent(rest[len(norms) :])
    tracked = all(getattr(mase(n).module, "track_running_stats", False) for n in norms)
    if not (plain and tracked and can_pass_on(layer)):
        return False
    for module in (layer, *(mase(n).module for n in norms)):
        pass_on(module)
    return True


def _only_idempotent(nodes: Iterable[fx.Node]) -> bool:
    return all(has_trait(mase(node).common.mase_op, "idempotent") for node in nodes)
