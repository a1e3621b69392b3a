"""Select nodes `by` type, by name, or by regular expression on names."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any, Literal, TypeVar, get_args

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS
from chop.registry import UnknownName

logger = logging.getLogger(__name__)

By = Literal["type", "name", "regex_name"]
Named = TypeVar("Named", bound=Any)  # a node, or something else with a name


def select(
    graph: MaseGraph, by: By, keys: Iterable[str], must_match: bool = False
) -> dict[fx.Node, str]:
    """Map each node that one of `keys` selects to that key, in graph order; the first match wins.

    The name of a node is its own, or the dotted name of the layer that it calls. An unknown type or
    name is an error that suggests the nearest one. A type or an expression without a match in this
    graph gives a warning; with `must_match`, such an expression is an error too.
    """
    wanted = list(keys)
    if must_match and by == "regex_name":
        _check_matches(map(compiled, wanted), [node.name for node in graph.nodes])
    selected = matching(graph, by, wanted)
    for key in sorted({*wanted} - {*selected.values()}):
        logger.warning("no node of the graph matches %s %r", by, key)
    return selected


def matching(graph: MaseGraph, by: By, wanted: list[str]) -> dict[fx.Node, str]:
    """Return what `select` does, without a warning of keys that match nothing."""
    if by == "regex_name":
        patterns = {key: compiled(key) for key in wanted}
        matches = {n: [k for k, p in patterns.items() if p.fullmatch(n.name)] for n in graph.nodes}
    elif by in ("type", "name"):
        types = {node: [mase(node).common.mase_op] for node in graph.nodes}
        called = types if by == "type" else spellings(graph.nodes)
        _check_known(by, wanted, called.values())
        chosen = set(wanted)
        matches = {n: [name for name in names if name in chosen] for n, names in called.items()}
    else:
        raise ValueError(f'Unsupported "by": {by!r}; it must be one of {", ".join(get_args(By))}')
    return {node: match[0] for node, match in matches.items() if match}


def spellings(nodes: Iterable[Named]) -> dict[Named, list[str]]:
    """Return the names by which users may mean each node, or each layer without a graph.

    These are `block_0_fc` and `block.0.fc`, unless the other spelling is the name of another node.
    """
    nodes = list(nodes)
    taken = {node.name for node in nodes}
    other = {node: _other_spelling(node) for node in nodes}
    return {n: [n.name, *({other[n]} - taken if other[n] is not None else ())] for n in nodes}


def _other_spelling(node: Any) -> str | None:
    if isinstance(node, fx.Node):
        return str(node.target) if node.op == "call_module" else None
    return node_name(node.name)


def node_name(layer: str) -> str:
    """Return the name that the node of a layer usually has.

    >>> node_name("block.0.fc"), node_name("0")
    ('block_0_fc', '_0')
    """
    name = layer.replace(".", "_")
    return f"_{name}" if name[:1].isdigit() else name


def _check_known(by: By, wanted: list[str], called: Iterable[list[str]]) -> None:
    """Check that each type is an op of the table or of this graph, and each name that of a node."""
    names = list(called)
    known = {name for each in names for name in each}
    listed = dict.fromkeys([each[0] for each in names] + (sorted(OPS) if by == "type" else []))
    for key in wanted:
        if not isinstance(key, str) or (key not in known and key not in listed):
            raise UnknownName("op" if by == "type" else "node", key, listed)


def _check_matches(patterns: Iterable[re.Pattern[str]], names: list[str]) -> None:
    """Raise an error for an expression that matches none of `names`."""
    for pattern in patterns:
        if not any(map(pattern.fullmatch, names)):
            raise UnknownName("node matching", pattern.pattern, names)


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression; raises an error that explains what is wrong with it."""
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:  # a list is no pattern
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
