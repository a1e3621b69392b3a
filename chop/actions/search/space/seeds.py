"""From the seed of a file to parameters: per node, by its name, its op or an expression."""

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
# the keys that exist for a value of `name`; None: it decides for itself
Keys = Callable[[Any], Collection[str] | None]


@dataclass(frozen=True)
class Table:
    """The choices for a node, and where they stand in the file."""

    choices: Mapping[str, Any]
    where: str


def table_of(value: Any, where: str) -> Table:
    """A table of a seed; with or without the `config` level of the labs."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is a table of choices, not {value!r}")
    inner = value.get("config", value)
    if not isinstance(inner, Mapping):
        raise ValueError(f"{where}.config is a table of choices, not {inner!r}")
    stray = [key for key in value if "config" in value and key != "config"]
    if stray:
        raise ValueError(f"{where}: {stray[0]!r} stands beside config; move it inside")
    return Table(inner, f"{where}.config" if "config" in value else where)


def seed_of_nodes(
    graph: fx.Graph, nodes: Iterable[fx.Node], by: str, seed: Mapping[str, Any], where: str
) -> dict[fx.Node, Table]:
    """The table of choices of each of the nodes; those that no key and no default means have none.

    A name that no node of the graph has is refused; one of a node that cannot be changed is not.
    """
    from chop.ir.graph.mase_metadata import mase
    from chop.ir.ops import OPS

    if by not in BY:
        raise ValueError(f"search.search_space.setup.by is one of {', '.join(BY)}, not {by!r}")
    tables = {key: table_of(value, f"{where}.{key}") for key, value in seed.items()}
    rest = tables.pop("default", None)
    nodes = list(nodes)
    called = {n: [mase(n).common.mase_op if by == "type" else n.name] for n in nodes}
    if by == "regex_name":
        called = {n: [k for k in tables if _matches(k, n.name, where)] for n in nodes}
    if by == "type":
        for key in tables:
            if key not in OPS and not any(key in names for names in called.values()):
                raise UnknownName(f"op in {where}", key, ["default", *sorted(OPS)])
    if by == "name":
        everyone = [node.name for node in graph.nodes]
        for key in tables:
            if key not in everyone:
                raise UnknownName(f"node in {where}", key, ["default", *(n.name for n in nodes)])
    known = {name for names in called.values() for name in names}
    for key in tables:
        if key not in known:
            _warn(key, by, [n.name for n in nodes] if by != "type" else sorted(known))
    found = {}
    for node, names in called.items():
        table = next((tables[name] for name in names if name in tables), rest)
        if table is not None:
            found[node] = table
    return found


def _matches(pattern: str, name: str, where: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error as error:
        raise ValueError(f"{where}: {pattern!r} is not a regular expression: {error}") from error


def _warn(key: str, by: str, known: list[str]) -> None:
    hint = did_you_mean(key, known, f" (there are {', '.join(known)})")
    logger.warning("the seed for %s %r matches no node that can be changed%s", by, key, hint)


def node_parameters(path: str, table: Table, keys: Keys) -> list[Parameter]:
    """The parameters of one node: its `name` first, then the keys that each name takes.

    A table below that is called like one of the names holds keys for that name alone.
    """
    choices, where = table.choices, table.where
    if "name" not in choices:
        raise ValueError(f'{where} needs name, a list such as ["integer"]')
    head = choice_of(choices["name"], f"{where}.name")
    if not isinstance(head, OneOf):
        raise ValueError(f"{where}.name is a list of names, not a range")
    for name in head.values:
        if not isinstance(name, str | None):
            raise ValueError(f'{where}.name offers {name!r:.80}; names are text, or "NA" for none')
    parameters = [Parameter(f"{path}/name", head)]
    for place, choice, names in _leaves(choices, head.values, where):
        key, real = place.rpartition(".")[2], [name for name in names if name is not None]
        known = {name: keys(name) for name in real}
        fitting = tuple(n for n, theirs in known.items() if theirs is None or key in theirs)
        if real and not fitting:
            hint = did_you_mean(key, [k for theirs in known.values() for k in theirs or ()])
            raise ValueError(f"{place} is not a key of {' or '.join(map(str, real))}{hint}")
        if fitting:
            always = len(fitting) == len(head.values)
            parent, when = (None, ()) if always else (f"{path}/name", fitting)
            parameters.append(Parameter(f"{path}/{key}", choice, parent, when))
    return parameters


def _leaves(
    table: Mapping[str, Any], names: tuple[Any, ...], where: str
) -> Iterable[tuple[str, Choice, tuple[Any, ...]]]:
    """Where each key stands, its choices, and the names for which it is meant."""
    own = {key: value for key, value in table.items() if key in names}
    for name, inner in own.items():
        if not isinstance(inner, Mapping):
            raise ValueError(f"{where}.{name} is a table of keys for {name}, not {inner!r}")
    for key, value in table.items():
        if key == "name" or key in own:
            continue
        others = tuple(name for name in names if key not in own.get(name, ()))
        yield f"{where}.{key}", choice_of(value, f"{where}.{key}", tables=False), others
    for name, inner in own.items():
        for key, value in inner.items():
            place = f"{where}.{name}.{key}"
            yield place, choice_of(value, place, tables=False), (name,)
