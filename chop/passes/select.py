"""Select nodes `by` type, by name, or by regular expression on names."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Literal, get_args

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS
from chop.registry import UnknownName

logger = logging.getLogger(__name__)

By = Literal["type", "name", "regex_name"]


def select(graph: MaseGraph, by: By, keys: Iterable[str]) -> dict[fx.Node, str]:
    """Map each node that one of `keys` selects to that key, in graph order; the first match wins.

    An unknown type or name is an error that suggests the nearest one; a type or an expression
    without a match in this graph gives a warning.
    """
    wanted = list(dict.fromkeys(keys))
    if by == "regex_name":
        patterns = {key: compiled(key) for key in wanted}
        matches = {n: [k for k, p in patterns.items() if p.fullmatch(n.name)] for n in graph.nodes}
        selected = {node: match[0] for node, match in matches.items() if match}
    elif by in ("type", "name"):
        called = {n: mase(n).common.mase_op if by == "type" else n.name for n in graph.nodes}
        chosen = set(wanted)
        _check_known(by, wanted, list(called.values()))
        selected = {node: name for node, name in called.items() if name in chosen}
    else:
        raise ValueError(f'Unsupported "by": {by!r}; it must be one of {", ".join(get_args(By))}')
    for key in set(wanted) - set(selected.values()):
        logger.warning("no node of the graph matches %s %r", by, key)
    return selected


def _check_known(by: By, wanted: list[str], called: list[str]) -> None:
    """Check that each type is an op of the table or of this graph, and each name that of a node."""
    known = dict.fromkeys([*called, *(sorted(OPS) if by == "type" else ())])
    for key in wanted:
        if key not in known:
            raise UnknownName("op" if by == "type" else "node", key, known)


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression; raises an error that explains what is wrong with it."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
