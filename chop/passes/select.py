"""Which nodes a user means: `by` type, by name, or by regular expression on names."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Literal, get_args

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import op_named
from chop.registry import UnknownName

logger = logging.getLogger(__name__)

By = Literal["type", "name", "regex_name"]


def select(graph: MaseGraph, by: By, keys: Iterable[str]) -> dict[fx.Node, str]:
    """Each node that one of `keys` means -> that key, in graph order; the first key that fits wins.

    A type that no op has, or a name that no node has, is refused with the nearest one; a type or
    an expression that finds nothing in this graph is worth a warning.
    """
    wanted = list(keys)
    if by == "type":
        for key in wanted:
            op_named(key)
        found = {n: op for n in graph.nodes if (op := mase(n).common.mase_op) in wanted}
    elif by == "name":
        names = [node.name for node in graph.nodes]
        for key in wanted:
            if key not in names:
                raise UnknownName("node", key, names)
        found = {node: node.name for node in graph.nodes if node.name in wanted}
    elif by == "regex_name":
        patterns = {key: _compiled(key) for key in wanted}
        matches = {n: [k for k, p in patterns.items() if p.fullmatch(n.name)] for n in graph.nodes}
        found = {node: match[0] for node, match in matches.items() if match}
    else:
        raise ValueError(f'Unsupported "by": {by!r}; it is one of {", ".join(get_args(By))}')
    for key in wanted:
        if key not in found.values():
            logger.warning("no node of the graph matches %s %r", by, key)
    return found


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
