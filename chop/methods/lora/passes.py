"""Insert low-rank adapters beside linear layers, and fuse them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from annotated_types import Ge, Lt
from torch import nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.log import show_logs_unless_configured
from chop.methods.lora.layers import LoRALinear
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.transforms import metadata_sync as sync
from chop.passes.options import NodeChoice, Problem, choices
from chop.passes.select import select

__all__ = ["fuse_lora_weights_transform_pass", "insert_lora_adapter_transform_pass"]

logger = logging.getLogger(__name__)


@graph_pass("insert_lora_adapter", "transform", needs=("common",))
def insert_lora_adapter_transform_pass(
    graph: MaseGraph,
    *,
    rank: Annotated[int, Ge(1)],
    lora_alpha: float = 0.5,
    lora_dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
    alpha: float | None = None,
    dropout: Annotated[float, Ge(0), Lt(1)] | None = None,
    nodes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Add a low-rank adapter beside every linear layer and freeze the layer's parameters.

    `alpha` and `dropout` are shorter names of `lora_alpha` and `lora_dropout`. `nodes` are regular
    expressions on names of nodes: only those get an adapter. Quantized layers stay quantized
    beside it. A new adapter changes nothing: its second matrix is zero.
    """
    if nodes is not None:
        chosen = set(select(graph, "regex_name", nodes))
    read = sync.read_modules(graph)
    alpha = lora_alpha if alpha is None else alpha
    dropout = lora_dropout if dropout is None else dropout
    adapters: dict[nn.Module, LoRALinear] = {}
    callers = sync.calls(graph)
    for layer, users in callers.items():
        if not isinstance(layer, nn.Linear) or (nodes is not None and not chosen & set(users)):
            continue
        if layer in read:
            logger.warning("Linear weights are read elsewhere. Skipped! (node %r)", users[0].name)
            continue
        adapters[layer] = LoRALinear.from_linear(layer, rank, alpha, dropout)
    show_logs_unless_configured()
    for layer, adapter in adapters.items():
        sync.exchange(graph, callers[layer], adapter)
        for node in callers[layer]:
            message = "Replaced node: %s, target: %s with LoRALinear module."
            logger.info(message, node.name, node.target)
    sync.finish(graph)
    return {"inserted": [node.name for layer in adapters for node in callers[layer]]}


@insert_lora_adapter_transform_pass.law
def _laws(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Check that options are not given under both their short and long names."""
    for name, default in (("alpha", 0.5), ("dropout", 0.0)):
        short, long = options[name], options[f"lora_{name}"]
        if short is not None and long not in (default, short):
            text = f"{name} = {short} and lora_{name} = {long} contradict; give one"
            yield Problem(name, text)


@insert_lora_adapter_transform_pass.chooses
def _chosen(options: Mapping[str, Any]) -> Iterator[NodeChoice]:
    yield from choices("nodes", "regex_name", options["nodes"])


@graph_pass("fuse_lora_weights", "transform", needs=("common",))
def fuse_lora_weights_transform_pass(graph: MaseGraph) -> dict[str, Any]:
    """Merge each adapter and its base into one linear layer, trainable if the base was."""
    callers = {m: users for m, users in sync.calls(graph).items() if isinstance(m, LoRALinear)}
    fused: dict[nn.Module, nn.Module] = {}
    for adapter, users in callers.items():
        try:
            fused[adapter] = adapter.fuse()
        except ValueError as error:
            raise PassArgsError(f"node {users[0].name!r}: {error}") from None
    show_logs_unless_configured()
    for adapter, users in callers.items():
        sync.exchange(graph, users, fused[adapter])
        logger.info("Fusing LoRALinear weights for %s.", users[0].target)
    sync.finish(graph)
    return {"fused": [node.name for users in callers.values() for node in users]}
