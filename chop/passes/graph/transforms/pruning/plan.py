"""Checked requests of the user: which layers to prune, how much, by which method."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import has_trait, ops_with
from chop.passes.base import PassArgsError
from chop.passes.graph.describe.left_out import (
    readers_that_compute,
    warn_of_left_out,
    weights_of_nodes,
)
from chop.passes.graph.transforms.adapters import adapter_of, refuse_adapters
from chop.passes.graph.transforms.pruning.methods import METHODS
from chop.passes.graph.transforms.pruning.weights import weight_names
from chop.passes.options import NodeChoice, Problem
from chop.passes.select import By, select, spellings
from chop.registry import unknown

Scope = Literal["local", "global"]
PRUNABLE_OP = (*ops_with("weighted_sum"), *ops_with("inner_products"))


@dataclass(frozen=True)
class Pattern:
    """At most `keep` of `of` neighbouring weights are not zero."""

    keep: int
    of: int

    @property
    def sparsity(self) -> float:
        return 1 - self.keep / self.of


Granularity = Literal["elementwise", "channel"] | Pattern


@dataclass(frozen=True)
class PruneRequest:
    """The table `weight` or `activation` of a config.

    `sparsity` is one number, or numbers by type, name or regular expression, as `by` says; the
    key "default" is for all other layers.
    """

    table: str
    sparsity: float | Mapping[str, float] = 0.0
    scope: Scope = "local"
    granularity: Granularity = "elementwise"
    method: str = "random"
    by: By = "name"

    @classmethod
    def read(cls, table: str, options: Mapping[str, Any]) -> PruneRequest:
        """Create the request from a table without problems."""
        for problem in cls.problems(table, options):
            raise PassArgsError(problem.text)
        granularity = _granularity(options)
        assert granularity is not None
        implied = granularity.sparsity if isinstance(granularity, Pattern) else 0.0
        sparsity = options.get("sparsity", implied)
        number = dict(sparsity) if isinstance(sparsity, Mapping) else float(sparsity)
        return cls(table, **{**options, "granularity": granularity, "sparsity": number})

    @classmethod
    def problems(cls, table: str, options: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield all problems of a table that do not depend on the graph."""
        known = [field.name for field in fields(cls) if field.name != "table"]
        where = f"{table}." if table else ""
        for key in options:
            if key not in known:
                yield Problem(f"{where}{key}", unknown(f"key of {table!r}", key, known))
        choice = {"scope": get_args(Scope), "by": get_args(By), "method": list(METHODS)}
        for key, known_values in choice.items():
            if key in options and options[key] not in known_values:
                place = f"{where}{key}"
                yield Problem(place, unknown(place, options[key], known_values))
        granularity = _granularity(options)
        if granularity is None:
            yield Problem(
                f"{where}granularity",
                f"{where}granularity is {options['granularity']!r}; give 'elementwise', 'channel', "
                f"or a pattern such as '2:4', which keeps 2 of every 4 neighbours",
            )
        for key, number in _numbers(options):
            place = f"{where}sparsity{key and '.' + key}"
            if wrong := _wrong_number(number, granularity):
                yield Problem(place, f"{place} {wrong}")
        if isinstance(options.get("sparsity"), Mapping) and options.get("scope") == "global":
            yield Problem(
                f"{where}scope",
                f"Layer-wise budgets only possible with a local scope! "
                f"Give {where}scope = 'local', or one number as {where}sparsity",
            )

    @classmethod
    def choices(cls, table: str, options: Mapping[str, Any]) -> Iterator[NodeChoice]:
        """Yield the layers that a table names."""
        where = f"{table}." if table else ""
        by = options.get("by", cls.by)
        for key, _ in _numbers(options):
            if key not in ("", "default"):
                place = f"{where}sparsity.{key}"
                yield NodeChoice(place, by, key, ops=PRUNABLE_OP, done="pruned", or_module=True)

    def per_node(self, graph: MaseGraph, pass_name: str = "prune") -> dict[fx.Node, float]:
        """The sparsity of each layer in graph order; one node per module."""
        wanted = self.sparsity if isinstance(self.sparsity, Mapping) else {"default": self.sparsity}
        refuse_adapters(pass_name, self._adapted(graph, {key for key in wanted if wanted[key]}))
        return _once_per_module(self._chosen(graph, wanted))

    def _adapted(self, graph: MaseGraph, wanted: set[str]) -> list[fx.Node]:
        """The chosen layers that have an adapter."""
        adapters = {node: adapter for node in graph.nodes if (adapter := adapter_of(node))}
        if "default" in wanted:
            return [*adapters]
        if self.by == "type":
            return [node for node, adapter in adapters.items() if adapter.op in wanted]
        if self.by == "regex_name":
            return [n for n in adapters if any(re.fullmatch(key, n.name) for key in wanted)]
        names = spellings(graph.nodes)
        return [node for node in adapters if wanted & {*names[node]}]

    def _chosen(self, graph: MaseGraph, wanted: Mapping[str, float]) -> dict[fx.Node, float]:
        by_key = {key: value for key, value in wanted.items() if key != "default"}
        chosen = select(graph, self.by, by_key)
        asked: dict[fx.Node, float] = {}
        for node in graph.nodes:
            if is_prunable(node) and (self.table != "activation" or _has_one_weight(node)):
                value = by_key[chosen[node]] if node in chosen else wanted.get("default")
                if value is not None:
                    asked[node] = value
            elif node in chosen and self.by == "name":
                raise PassArgsError(f"node {node.name!r} {_why_not(node, self.table)}")
        return asked


def is_prunable(node: fx.Node) -> bool:
    """Whether a node calls a layer with a maskable weight."""
    module = mase(node).module
    return module is not None and bool(weight_names(module))


def warn_of_unpruned(graph: MaseGraph) -> None:
    """Warn once for a graph of layers and parameters with weights that cannot be pruned."""
    left_out = [
        node
        for node, parameters in weights_of_nodes(graph).items()
        if not _can_be_pruned(node) and _multiplies(node) and any(p.dim() > 1 for p in parameters)
    ]
    stays = "stays as it is", "stay as they are"
    warn_of_left_out(graph, "pruned", left_out, _can_be_pruned, stays)


def _can_be_pruned(node: fx.Node) -> bool:
    """Whether a node calls a layer with weights that this pass prunes, or that of an adapter."""
    return is_prunable(node) or adapter_of(node) is not None


def _multiplies(node: fx.Node) -> bool:
    """Whether a node brings weights of products: a layer, or a parameter that a product reads."""
    readers = [mase(reader).common.mase_op for reader in readers_that_compute(node)]
    return node.op == "call_module" or not all(has_trait(op, "pointwise") for op in readers)


def _has_one_weight(node: fx.Node) -> bool:
    module = mase(node).module
    return module is not None and weight_names(module) == ["weight"]


def _why_not(node: fx.Node, table: str) -> str:
    op = mase(node).common.mase_op
    if table == "activation" and is_prunable(node):
        return f"is {op}, of which only weights are pruned; name it in the table weight"
    if op in PRUNABLE_OP:
        return (
            f"is {op} without a weight parameter, as when the weight is computed; prune the "
            f"layers that have one"
        )
    return f"is {op}, which cannot be pruned; these can: {', '.join(PRUNABLE_OP)}"


def _granularity(options: Mapping[str, Any]) -> Granularity | None:
    """The granularity in a table; None if it is not a valid one."""
    written = options.get("granularity", "elementwise")
    if written in ("elementwise", "channel"):
        return written  # type: ignore[no-any-return]
    pattern = re.fullmatch(r"(\d+):(\d+)", written) if isinstance(written, str) else None
    if pattern is None or not 1 <= int(pattern[1]) <= int(pattern[2]):
        return None
    return Pattern(int(pattern[1]), int(pattern[2]))


def _numbers(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Each sparsity with its key; "" means all layers."""
    if "sparsity" not in options:
        return []
    value = options["sparsity"]
    return list(value.items()) if isinstance(value, Mapping) else [("", value)]


def _wrong_number(number: Any, granularity: Granularity | None) -> str | None:
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 1:
        return f"is {number!r}; give a number from 0 to 1"
    if not isinstance(granularity, Pattern) or number == 0:
        return None
    if math.isclose(number, granularity.sparsity):
        return None
    return (
        f"is {number}, but {granularity.keep}:{granularity.of} means {granularity.sparsity:g}; "
        f"leave sparsity out, or give 0 to leave a layer as it is"
    )


def _once_per_module(asked: Mapping[fx.Node, float]) -> dict[fx.Node, float]:
    first: dict[Any, fx.Node] = {}
    for node, sparsity in asked.items():
        other = first.setdefault(node.target, node)
        if asked[other] != sparsity:
            raise PassArgsError(
                f"nodes {other.name!r} and {node.name!r} call the same module {node.target!r}; "
                f"give them the same sparsity"
            )
    return {node: asked[node] for node in first.values()}
