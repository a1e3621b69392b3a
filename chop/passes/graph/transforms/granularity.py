"""Make one node of the many that a module was traced into."""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import Operands, mase
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.transforms.upkeep import add_metadata, finish
from chop.registry import UnknownName

logger = logging.getLogger(__name__)

Call = tuple[str, str]  # a module's dotted name, and fx's name of one call of it
STACK = "nn_module_stack"  # where fx's tracer notes inside which modules a node was made


@graph_pass("raise_granularity", "transform", needs=("common",))
def raise_granularity_transform_pass(
    graph: MaseGraph, *, inherit: bool = False, modules: Sequence[str] | None = None
) -> dict[str, Any]:
    """Group the nodes of a module into one call of it, which is a user_defined_module.

    `modules` are dotted names; by default they are the innermost modules that were traced into.
    A module whose calls differ, or that uses layers of another, is left with a warning.
    """
    if inherit:
        raise PassArgsError("inherit = True is not supported: a raised node has no op to inherit")
    groups = _groups(graph)
    wanted = _innermost(groups) if modules is None else list(dict.fromkeys(modules))
    for name in wanted:
        if name not in {module for module, _ in groups}:
            raise UnknownName("module of several nodes", name, [m for m, _ in groups])
        for other in wanted:
            if other.startswith(f"{name}."):
                raise PassArgsError(f"modules: {other!r} lies inside {name!r}; choose one of them")
    raised: dict[str, list[str]] = {}
    for name in wanted:
        nodes = [group for (module, _), group in groups.items() if module == name]
        parts = [_part(graph, name, group) for group in nodes]
        reason = _why_not(graph, nodes, parts)
        if reason:
            logger.warning("Module %r %s. Skipped!", name, reason)
            continue
        # a module without layers or parameters is not there in a graph's model
        root = graph.modules[name] if name in graph.modules else nn.Module()
        inner = fx.GraphModule(root, parts[0].graph, class_name="Raised")  # type: ignore[union-attr]
        moved: dict[fx.Node, fx.Node] = {}  # what a call gave -> what gives it now
        for group, part in zip(nodes, parts, strict=True):
            assert part is not None
            raised.setdefault(name, []).extend(node.name for node in group)
            part.inputs = [moved.get(node, node) for node in part.inputs]
            moved |= _call(graph, name, group, part, inner)
    graph.fx_graph.eliminate_dead_code(is_impure_node=lambda node: node.op != "get_attr")
    finish(graph)
    return {"raised": raised}


def _groups(graph: MaseGraph) -> dict[Call, list[fx.Node]]:
    """The nodes of each call of a module that has more than one."""
    found: dict[Call, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "get_attr":  # is read wherever it is needed
            continue
        for call, (name, _) in node.meta.get(STACK, {}).items():
            if name and not (node.op == "call_module" and name == node.target):
                found.setdefault((name, call), []).append(node)
    return {call: nodes for call, nodes in found.items() if len(nodes) > 1}


def _innermost(groups: dict[Call, list[fx.Node]]) -> list[str]:
    names = list(dict.fromkeys(name for name, _ in groups))
    return [n for n in names if not any(other.startswith(f"{n}.") for other in names)]


class _Part:
    """A group of nodes as a graph of its own, with what goes in and what comes out."""

    def __init__(self, graph: fx.Graph, inputs: list[fx.Node], outputs: list[fx.Node]) -> None:
        self.graph, self.inputs, self.outputs = graph, inputs, outputs


def _part(graph: MaseGraph, name: str, group: list[fx.Node]) -> _Part | None:
    """The group as a graph whose names count from the module; None if it uses others' layers."""
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
    return _Part(part, inputs, outputs)


def _why_not(
    graph: MaseGraph, groups: list[list[fx.Node]], parts: Sequence[_Part | None]
) -> str | None:
    order = {node: i for i, node in enumerate(graph.nodes)}
    codes = set()
    for group, part in zip(groups, parts, strict=True):
        if part is None:
            return "uses layers of another module"
        if any(order[source] > order[group[0]] for source in part.inputs):
            return "has nodes of others between its own"
        codes.add(_outline(part.graph))
    return "is called in more than one way" if len(codes) > 1 else None


def _outline(graph: fx.Graph) -> str:
    """What a graph does, whatever its nodes are called."""
    index = {node: f"%{i}" for i, node in enumerate(graph.nodes)}

    def numbered(value: Any) -> Any:
        return fx.node.map_arg(value, lambda node: index[node])

    return str([(n.op, n.target, numbered(n.args), numbered(n.kwargs)) for n in graph.nodes])


def _call(
    graph: MaseGraph, name: str, group: list[fx.Node], part: _Part, inner: fx.GraphModule
) -> dict[fx.Node, fx.Node]:
    """Put one call of `inner` in the place of a group; what takes the place of its results."""
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
