"""Replace the nodes that a module was traced into by one node."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import Operands, mase
from chop.passes.base import graph_pass
from chop.passes.graph.transforms.metadata_sync import add_metadata, finish, outer_names
from chop.passes.options import STACK, NodeChoice, Problem, choices
from chop.registry import UnknownName

logger = logging.getLogger(__name__)

Groups = dict[str, dict[str, list[fx.Node]]]  # module -> fx's name of one call -> its nodes


@graph_pass("raise_granularity", "transform", needs=("common",), new_nodes=True)
def raise_granularity_transform_pass(
    graph: MaseGraph, *, inherit: bool = False, modules: Sequence[str] | None = None
) -> dict[str, Any]:
    """Group the nodes of a module into one call of it, a user_defined_module.

    `modules` are dotted names; by default they are the innermost modules that were traced into.
    A module with calls that differ, or that uses layers of another, stays, with a warning.
    """
    groups = _groups(graph)
    wanted = _innermost(groups) if modules is None else list(dict.fromkeys(modules))
    for name in wanted:
        if name not in groups:
            raise UnknownName("module of several nodes", name, list(groups))
    raised: dict[str, list[str]] = {}
    inside = _inside(graph)
    for name in wanted:
        nodes = list(groups[name].values())
        parts = [_part(graph, name, group) for group in nodes]
        reason = _why_not(nodes, parts, inside.get(name, []))
        if reason:
            logger.warning("Module %r %s. Skipped!", name, reason)
            continue
        # a module without layers or parameters does not exist in the graph's model
        root = graph.modules[name] if name in graph.modules else nn.Module()
        inner = fx.GraphModule(root, parts[0].graph, class_name="Raised")  # type: ignore[union-attr]
        moved: dict[fx.Node, fx.Node] = {}  # results of a call -> the nodes that now give them
        for group, part in zip(nodes, parts, strict=True):
            assert part is not None
            raised.setdefault(name, []).extend(node.name for node in group)
            part.inputs = [moved.get(node, node) for node in part.inputs]
            moved |= _call(graph, name, group, part, inner)
    graph.fx_graph.eliminate_dead_code(is_impure_node=lambda node: node.op != "get_attr")
    finish(graph)
    return {"raised": raised}


@raise_granularity_transform_pass.law
def _laws(options: Mapping[str, Any]) -> Iterator[Problem]:
    if options["inherit"]:
        text = "inherit = True is not supported: a raised node has no op to inherit"
        yield Problem("inherit", text)
    wanted = options["modules"] or ()
    for name in wanted:
        for outer in outer_names(name):
            if outer in wanted:
                text = f"modules: {name!r} is inside {outer!r}; choose one of them"
                yield Problem("modules", text)


@raise_granularity_transform_pass.chooses
def _chosen(options: Mapping[str, Any]) -> Iterator[NodeChoice]:
    yield from choices("modules", "module", options["modules"])


def _groups(graph: MaseGraph) -> Groups:
    """The nodes of each call of a module, by its dotted name, except calls of a single node."""
    groups: Groups = {}
    for node in graph.nodes:
        if node.op == "get_attr":  # read again wherever it is needed
            continue
        for call, (name, _) in node.meta.get(STACK, {}).items():
            if name and not (node.op == "call_module" and name == node.target):
                groups.setdefault(name, {}).setdefault(call, []).append(node)
    return {
        name: calls for name, calls in groups.items() if any(len(c) > 1 for c in calls.values())
    }


def _innermost(groups: Groups) -> list[str]:
    outer = {outer for name in groups for outer in outer_names(name)}
    return [name for name in groups if name not in outer]


class _SubgraphPart:
    """A group of nodes as a separate graph, with its inputs and outputs."""

    def __init__(self, graph: fx.Graph, inputs: list[fx.Node], outputs: list[fx.Node]) -> None:
        self.graph, self.inputs, self.outputs = graph, inputs, outputs


def _part(graph: MaseGraph, name: str, group: list[fx.Node]) -> _SubgraphPart | None:
    """The group as a graph with names relative to the module; None if it uses layers of others."""
    prefix, members = f"{name}.", set(group)
    sources = dict.fromkeys(s for node in group for s in node.all_input_nodes if s not in members)
    owned = [s for s in sources if s.op == "get_attr" and str(s.target).startswith(prefix)]
    inputs = [s for s in sources if s not in owned]
    outputs = [node for node in group if any(user not in members for user in node.users)]
    part = fx.Graph()
    env = {source: part.placeholder(f"in_{i}") for i, source in enumerate(inputs)}
    for node in (*owned, *group):
        env[node] = copy = part.node_copy(node, lambda n: env[n])
        copy.meta = {}
        if node.op not in ("call_module", "get_attr"):
            continue
        if not str(node.target).startswith(prefix):
            return None
        copy.target = str(node.target).removeprefix(prefix)
    results = [env[node] for node in outputs]
    part.output(results[0] if len(results) == 1 else tuple(results))
    return _SubgraphPart(part, inputs, outputs)


def _inside(graph: MaseGraph) -> dict[str, list[fx.Node]]:
    """Each module -> the nodes that call or read anything inside it."""
    nodes_in: dict[str, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            for outer in outer_names(str(node.target)):
                nodes_in.setdefault(outer, []).append(node)
    return nodes_in


def _why_not(
    groups: list[list[fx.Node]], parts: Sequence[_SubgraphPart | None], inside: list[fx.Node]
) -> str | None:
    members = {node for group in groups for node in group}
    for node in inside:
        users = [node] if node.op == "call_module" else node.users
        if any(user not in members for user in users):
            return "has layers or parameters that other modules use"
    codes = set()
    for group, part in zip(groups, parts, strict=True):
        if part is None:
            return "uses layers of another module"
        if any(group[0] < source for source in part.inputs):
            return "has nodes of other modules between its nodes"
        codes.add(_outline(part.graph))
    return "is called in more than one way" if len(codes) > 1 else None


def _outline(graph: fx.Graph) -> str:
    """A description of a graph that ignores the names of its nodes."""
    index = {node: f"%{i}" for i, node in enumerate(graph.nodes)}

    def numbered(value: Any) -> Any:
        return fx.node.map_arg(value, lambda node: index[node])

    return str([(n.op, n.target, numbered(n.args), numbered(n.kwargs)) for n in graph.nodes])


def _call(
    graph: MaseGraph, name: str, group: list[fx.Node], part: _SubgraphPart, inner: fx.GraphModule
) -> dict[fx.Node, fx.Node]:
    """Replace a group by one call of `inner`; return old result -> new node."""
    graph.model.add_submodule(name, inner)
    stack = {
        call: entry
        for call, entry in group[0].meta[STACK].items()
        if name == entry[0] or name.startswith(f"{entry[0]}.")
    }
    with graph.fx_graph.inserting_before(group[0]):
        call = graph.fx_graph.call_module(name, tuple(part.inputs))
    call.meta[STACK] = stack
    results = [mase(node).common.results["data_out_0"].clone() for node in part.outputs]
    add_metadata(graph, call, Operands({f"data_out_{i}": r for i, r in enumerate(results)}))
    places: dict[fx.Node, fx.Node] = {}
    for i, node in enumerate(part.outputs):
        taken = call
        if len(part.outputs) > 1:
            with graph.fx_graph.inserting_before(group[0]):
                taken = graph.fx_graph.call_function(operator.getitem, (call, i))
            add_metadata(graph, taken, mase(node).common.results.clone())
        places[node] = taken
        node.replace_all_uses_with(taken, delete_user_cb=lambda user: user not in set(group))
    for node in reversed(group):
        graph.fx_graph.erase_node(node)
    return places
