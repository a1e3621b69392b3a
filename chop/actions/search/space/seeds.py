"""The seed of a file as parameters of nodes, which match by name, op or regular expression."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from chop.actions.search.space.choices import Choice, OneOf, Parameter, choice_of
from chop.options import did_you_mean
from chop.passes.select import By
from chop.registry import UnknownName

if TYPE_CHECKING:
    from torch import fx

logger = logging.getLogger(__name__)

BY = get_args(By)
# returns the keys that exist for a value of `name`, None for any
Keys = Callable[[Any], Collection[str] | None]


@dataclass(frozen=True)
class Table:
    """The choices for a node, and where they stand in the file."""

    choices: Mapping[str, Any]
    where: str


def table_of(value: Any, where: str) -> Table:
    """Return a table of a seed, with or without the `config` level of the labs."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a table of choices, not {value!r}")
    inner = value.get("config", value)
    if not isinstance(inner, Mapping):
        raise ValueError(f"{where}.config must be a table of choices, not {inner!r}")
    stray = [key for key in value if "config" in value and key != "config"]
    if stray:
        raise ValueError(f"{where}: {stray[0]!r} must be inside the `config` table")
    return Table(inner, f"{where}.config" if "config" in value else where)


def seed_of_nodes(
    graph: fx.Graph, nodes: Iterable[fx.Node], by: str, seed: Mapping[str, Any], where: str
) -> dict[fx.Node, Table]:
    """Return the table of choices of each node that a key or the default matches.

    A name that is neither a node of the graph nor an op is refused. An op in a seed by name, or a
    node in one by type, is ignored with a warning.
    """
    from chop.ir.graph.mase_metadata import mase
    from chop.ir.ops import OPS
    from chop.passes.select import spellings

    if by not in BY:
        raise ValueError(f"search.search_space.setup.by must be one of {', '.join(BY)}, not {by!r}")
    tables = {key: table_of(value, f"{where}.{key}") for key, value in seed.items()}
    default = tables.pop("default", None)
    nodes = list(nodes)
    spelt = spellings(graph.nodes)
    keys = {n: [mase(n).common.mase_op] if by == "type" else spelt[n] for n in nodes}
    if by == "regex_name":
        keys = {n: [k for k in tables if _matches(k, n.name, where)] for n in nodes}
    matched, names = {key for each in keys.values() for key in each}, [n.name for n in nodes]
    all_names = {name for each in spelt.values() for name in each}
    for key in (key for key in tables if key not in matched):
        if key not in OPS and key not in all_names and by == "type":
            raise UnknownName(f"op in {where}", key, ["default", *sorted(OPS)])
        if key not in OPS and key not in all_names and by == "name":
            raise UnknownName(f"node in {where}", key, ["default", *names])
        other_kind = {"type": all_names, "name": OPS.keys() - all_names}.get(by, ())
        if key in other_kind:
            kind = "a node" if by == "type" else "an op"
            logger.warning("%s.%s is ignored: %r is %s, and by is %r", where, key, key, kind, by)
        else:
            _warn(key, by, names if by != "type" else sorted(matched))
    chosen = {n: next((tables[k] for k in ks if k in tables), default) for n, ks in keys.items()}
    return {node: table for node, table in chosen.items() if table is not None}


def _matches(pattern: str, name: str, where: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error as error:
        raise ValueError(f"{where}: {pattern!r} is not a regular expression: {error}") from error


def _warn(key: str, by: str, known: list[str]) -> None:
    hint = did_you_mean(key, known, f" (there are {', '.join(known)})")
    logger.warning("the seed for %s %r matches no node that can be changed%s", by, key, hint)


def node_parameters(path: str, table: Table, keys: Keys) -> list[Parameter]:
    """Return the parameters of one node: its `name` first, then the keys that each name takes.

    An inner table with one of the names holds keys for that name alone.
    """
    from chop.passes.graph.transforms.quantize.config import is_key_of_any_format, warn_of_surplus

    choices, where = table.choices, table.where
    if "name" not in choices:
        raise ValueError(f'{where} needs name, a list such as ["integer"]')
    head = choice_of(choices["name"], f"{where}.name")
    if not isinstance(head, OneOf):
        raise ValueError(f"{where}.name must be a list of names, not a range")
    for name in head.values:
        if not isinstance(name, str | None):
            raise ValueError(f'{where}.name offers {name!r:.80}; names are text, or "NA" for none')
    parameters = [Parameter(f"{path}/name", head)]
    for path_in_file, choice, names in _leaves(choices, head.values, where):
        key = path_in_file.rpartition(".")[2]
        known = {name: keys(name) for name in names if name is not None}
        fitting = tuple(n for n, taken in known.items() if taken is None or key in taken)
        if known and not fitting and is_key_of_any_format(key):
            warn_of_surplus(f"{where} for {' or '.join(known)}", (key,))
        elif known and not fitting:
            hint = did_you_mean(key, [k for taken in known.values() for k in taken or ()])
            raise ValueError(f"{path_in_file} is not a key of {' or '.join(known)}{hint}")
        if fitting:
            always = len(fitting) == len(head.values)
            parent, when = (None, ()) if always else (f"{path}/name", fitting)
            parameters.append(Parameter(f"{path}/{key}", choice, parent, when))
    return parameters


def _leaves(
    table: Mapping[str, Any], names: tuple[Any, ...], where: str
) -> Iterable[tuple[str, Choice, tuple[Any, ...]]]:
    """Yield where each key stands in the file, its choices, and the names that it is for."""
    own_tables = {key: value for key, value in table.items() if key in names}
    for name, inner in own_tables.items():
        if not isinstance(inner, Mapping):
            raise ValueError(f"{where}.{name} must be a table of keys for {name}, not {inner!r}")
    for key, value in table.items():
        if key == "name" or key in own_tables:
            continue
        others = tuple(name for name in names if key not in own_tables.get(name, ()))
        yield f"{where}.{key}", choice_of(value, f"{where}.{key}", tables=False), others
    for name, inner in own_tables.items():
        for key, value in inner.items():
            path = f"{where}.{name}.{key}"
            yield path, choice_of(value, path, tables=False), (name,)
