"""Deploy quantised linear layers to the 8-bit kernels of torch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import fx, nn

from chop.dotted import deepsetattr
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import has_trait
from chop.methods.deploy.codes import NotDeployed
from chop.methods.deploy.convert import deployed_layer
from chop.methods.deploy.kernels import Target, why_not_on
from chop.methods.deploy.layers import DeployedLinear
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.describe.common import describe_again
from chop.passes.graph.describe.hardware import renote_hardware
from chop.passes.graph.transforms import metadata_sync as sync
from chop.passes.graph.transforms.adapters import adapter_of
from chop.passes.options import NodeChoice, choices
from chop.passes.select import select

__all__ = ["deploy_transform_pass"]

logger = logging.getLogger(__name__)

Deployed = dict[nn.Module, DeployedLinear]


@graph_pass("deploy", "transform", needs=("common",))
def deploy_transform_pass(
    graph: MaseGraph,
    *,
    target: Target,
    output: Literal["float32", "bfloat16"] | None = None,
    nodes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Replace quantised linear layers by layers that multiply 8-bit numbers by torch's kernels.

    "cuda-int8" is for `integer`, `scale_integer` and `affine` of at most 8 bits, "cuda-fp8" for
    `fp8`. Weights are stored in 8 bits, and the new layers are for inference only; they run on a
    GPU, and on a CPU for tests. `output` is the dtype of their results, by default that of the
    weights. `nodes` are regular expressions on names of nodes: only those are deployed, and one
    that cannot be is an error; without it such layers stay as they are, with a reason.
    """
    chosen = None if nodes is None else set(select(graph, "regex_name", nodes, must_match=True))
    made, skipped = _plan(graph, target, output, chosen)
    callers = sync.calls(graph)
    deployed = [node.name for layer in made for node in callers[layer]]
    if not made and not any(isinstance(layer, DeployedLinear) for layer in callers):
        raise PassArgsError(_nothing(graph, target, skipped, chosen))
    before = {layer: _bytes(layer) for layer in made}
    _exchange(graph, made, callers)
    for name, reason in skipped.items():
        logger.warning("node %r is not deployed to %s: %s", name, target, reason)
    _warn_of_device(target)
    return {
        "deployed": deployed,
        "skipped": skipped,
        "bytes": {
            callers[layer][0].name: {"before": before[layer], "after": _bytes(new)}
            for layer, new in made.items()
        },
    }


@deploy_transform_pass.chooses
def _chosen(options: Mapping[str, Any]) -> Iterator[NodeChoice]:
    yield from choices("nodes", "regex_name", options["nodes"])


def _plan(
    graph: MaseGraph, target: Target, output: Any, chosen: set[fx.Node] | None
) -> tuple[Deployed, dict[str, str]]:
    """Return the new layers, and for each node that stays as it is the reason."""
    made: Deployed = {}
    skipped: dict[str, str] = {}
    read, callers = sync.read_modules(graph), sync.calls(graph)
    for node in _multiplying(graph):
        named = chosen is not None and node in chosen
        if chosen is not None and not named:
            skipped[node.name] = "it is not among the chosen nodes"
            continue
        layer = graph.modules[str(node.target)] if node.op == "call_module" else None
        try:
            if layer is None or adapter_of(node) or layer in read:
                raise NotDeployed(_unusable(node))
            if chosen is not None and not chosen >= set(callers[layer]):
                raise NotDeployed("another node calls the same layer; choose both")
            if isinstance(layer, DeployedLinear):
                _check_again(layer, target, output)
            elif layer not in made:
                made[layer] = deployed_layer(layer, target, output)
        except NotDeployed as error:
            if named:
                raise PassArgsError(f"node {node.name!r}: {error}") from error
            skipped[node.name] = str(error)
    return made, skipped


def _multiplying(graph: MaseGraph) -> Iterator[fx.Node]:
    """Yield the nodes that multiply with weights."""
    for node in graph.nodes:
        op = mase(node).common.mase_op
        weighted = has_trait(op, "weighted_sum") or has_trait(op, "inner_products")
        if weighted or adapter_of(node) or op == DeployedLinear.mase_op:
            yield node


def _check_again(layer: DeployedLinear, target: Target, output: Any) -> None:
    """Refuse to deploy a layer to another target, or with another dtype, than it was."""
    if layer.target != target or output not in (None, layer.output):
        raise NotDeployed(
            f"it was deployed to {layer.target} with output = {layer.output!r} already; deploy "
            f"the quantised graph from before that"
        )


def _unusable(node: fx.Node) -> str:
    if node.op != "call_module":
        return f"it calls {mase(node).common.mase_op} as a function; use nn.Linear"
    if adapter := adapter_of(node):
        return f"it has {adapter.name}; run {adapter.fused_by}, and quantise it, first"
    return "its weights are read elsewhere in the graph, where they are in float"


def _nothing(
    graph: MaseGraph, target: Target, skipped: Mapping[str, str], chosen: set[fx.Node] | None
) -> str:
    """Return the sentence for a graph in which no layer can be deployed; linear ones come first."""
    linear = [node.name for node in graph.nodes if mase(node).common.mase_op == "linear"]
    if chosen is not None:
        names = ", ".join(sorted(node.name for node in chosen))
        could = f", such as {linear[0]}" if linear else ""
        return f"none of the chosen nodes ({names}) has weights; choose linear layers{could}"
    if not skipped:
        return "the graph has no layer that could be deployed; quantise its linear layers first"
    first, *more = sorted(skipped, key=lambda name: name not in linear)
    others = f" (and {len(more)} more)" if more else ""
    return f"no layer can be deployed to {target}: node {first!r}: {skipped[first]}{others}"


def _exchange(graph: MaseGraph, made: Deployed, callers: Mapping[nn.Module, list[fx.Node]]) -> None:
    """Put the new layers into the graph; leave it as it was if it would not run any more."""
    _put(graph, {new: callers[old] for old, new in made.items()})
    recorded = {new: mase(callers[old][0]).common.results for old, new in made.items()}
    other = [
        new for new, results in recorded.items()
        if results.tensor("data_out_0").torch_dtype != new.dtype
    ]  # fmt: skip
    if other:
        try:
            describe_again(graph)
        except PassArgsError as error:
            _put(graph, {old: callers[old] for old in made})
            raise PassArgsError(
                f"the rest of the network does not take results in {other[0].output}: "
                f"{str(error).partition(': ')[2]}; leave out output, or convert the model first"
            ) from error
        for node in graph.nodes:
            renote_hardware(graph, node)
    for old, new in made.items():
        sync.exchange(graph, callers[old], new)
    sync.finish(graph)


def _put(graph: MaseGraph, layers: Mapping[Any, Iterable[fx.Node]]) -> None:
    for layer, users in layers.items():
        for node in users:
            deepsetattr(graph.model, str(node.target), layer)


def _bytes(layer: nn.Module) -> int:
    """Return the bytes of a layer's tensors."""
    return sum(t.numel() * t.element_size() for t in (*layer.parameters(), *layer.buffers()))


def _warn_of_device(target: Target) -> None:
    """Say once for a graph that this machine has no kernel that is fast."""
    if not torch.cuda.is_available():
        logger.warning(
            "torch finds no CUDA device: layers deployed to %s run by torch's CPU kernels, which "
            "are for tests and not faster",
            target,
        )
    elif (reason := why_not_on(torch.device("cuda", 0), target)) is not None:
        logger.warning("%s", reason)
