"""Replace linear layers by truth tables on edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from annotated_types import Ge, Le
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.methods.edge_tables import EdgeTable
from chop.methods.edge_tables.edge_functions import FunctionName
from chop.methods.edge_tables.frozen_edges import MAX_BITS
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.transforms import metadata_sync as sync
from chop.passes.options import NodeChoice, choices
from chop.passes.select import select

__all__ = ["tables_transform_pass"]

MAX_EDGES = 2**20  # of one layer


@graph_pass("tables", "transform", needs=("common",))
def tables_transform_pass(
    graph: MaseGraph,
    *,
    nodes: Sequence[str] | None = None,
    function: FunctionName = "mlp",
    hidden: Annotated[int, Ge(1)] = 8,
    bits_in: Sequence[float] = (2.0, 3.0),
    bits_out: Sequence[float] = (1.0, 4.0),
    max_bits_in: Annotated[int, Ge(2), Le(MAX_BITS)] = 8,
) -> dict[str, Any]:
    """Replace linear layers by layers that have a learned function on every edge, to be trained.

    `nodes` are regular expressions on names of nodes: only those are replaced, and all linear
    layers without it. `bits_in` and `bits_out` are the integer and fraction bits of an edge to
    start with; an input never has more than `max_bits_in` bits. The functions are new: the
    weights of the linear layers are lost.
    """
    chosen = None if nodes is None else set(select(graph, "regex_name", nodes))
    options = {
        "function": function, "hidden": hidden, "bits_in": bits_in, "bits_out": bits_out,
        "max_bits_in": max_bits_in,
    }  # fmt: skip
    read, made = sync.read_modules(graph), {}
    callers = sync.calls(graph)
    for layer, users in callers.items():
        if not isinstance(layer, nn.Linear) or (chosen is not None and not chosen & set(users)):
            continue
        if layer in read:
            raise PassArgsError(
                f"node {users[0].name!r}: its weights are read elsewhere in the graph; leave it out"
            )
        if layer.weight.numel() > MAX_EDGES:
            raise PassArgsError(
                f"node {users[0].name!r} has {layer.weight.numel():,} edges; at most "
                f"{MAX_EDGES:,} get functions of their own: leave it out, or make it narrower"
            )
        made[layer] = _made(layer, users[0].name, options)
    for layer, new in made.items():
        sync.exchange(graph, callers[layer], new)
    sync.finish(graph)
    return {"replaced": [node.name for layer in made for node in callers[layer]]}


def _made(layer: nn.Linear, name: str, options: Mapping[str, Any]) -> EdgeTable:
    try:
        return EdgeTable.like(layer, **options)
    except ValueError as error:
        raise PassArgsError(f"node {name!r}: {error}") from error


@tables_transform_pass.chooses
def _chosen(options: Mapping[str, Any]) -> Iterator[NodeChoice]:
    yield from choices("nodes", "regex_name", options["nodes"])
