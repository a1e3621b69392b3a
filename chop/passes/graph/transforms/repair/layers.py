"""The quantised layers that a pass repairs: chosen, checked, and exchanged at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx, nn
from torch.nn.utils import parametrize

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import module_op
from chop.passes.base import PassArgsError
from chop.passes.graph.describe.formats import node_formats
from chop.passes.graph.transforms import metadata_sync as sync
from chop.passes.graph.transforms.pruning.masks import masks_of
from chop.passes.graph.transforms.quantize.quantized_modules import Quantized
from chop.passes.options import NodeChoice, choices
from chop.passes.select import By, select
from chop.registry import UnknownName

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class QuantizedLayer:
    """A quantised layer with weights, and the nodes that call it."""

    layer: Quantized
    nodes: tuple[fx.Node, ...]

    @property
    def name(self) -> str:
        """The name of the node that calls it first."""
        return self.nodes[0].name


WhyNot = Callable[[QuantizedLayer], str | None]  # why a pass cannot repair a layer


def chosen_layers(
    name: str, graph: MaseGraph, by: By, nodes: Sequence[str], why_not: WhyNot
) -> tuple[list[QuantizedLayer], dict[str, str]]:
    """Return the layers that the pass `name` repairs, and why it skips others, by node.

    A layer chosen by name that cannot be repaired is an error, and so are a graph with no layer
    that can, and weights that are not finite. Without `nodes`, all quantised layers with weights
    are chosen.
    """
    try:
        named = select(graph, by, nodes)
    except (UnknownName, ValueError) as error:
        raise PassArgsError(str(error)) from None
    layers, skipped = [], {}
    for target in _quantized_layers(graph, named if nodes else graph.nodes):
        _check_finite(target)
        reason = _unusable(graph, target) or why_not(target)
        if reason is None:
            layers.append(target)
        elif nodes and by == "name":
            raise PassArgsError(f"node {target.name!r} {reason}")
        else:
            skipped[target.name] = reason
    if nodes and by == "name":
        _check_all_found(name, named, layers)
    if not layers:
        raise PassArgsError(_nothing(graph, name, skipped))
    for node, reason in skipped.items():
        logger.warning("node %r %s; it is skipped", node, reason)
    return layers, skipped


def chosen_nodes(options: Mapping[str, Any]) -> Iterator[NodeChoice]:
    """Yield the nodes that the options `by` and `nodes` choose, to be checked before a run."""
    yield from choices("nodes", options["by"], options["nodes"])


def _quantized_layers(graph: MaseGraph, among: Iterable[fx.Node]) -> Iterator[QuantizedLayer]:
    """Yield quantised linear layers and convolutions in the order of their first calls."""
    wanted = set(among)
    for layer, nodes in sync.calls(graph).items():
        if isinstance(layer, Quantized) and is_weighted(layer) and wanted & set(nodes):
            yield QuantizedLayer(layer, tuple(nodes))


def is_weighted(layer: nn.Module) -> bool:
    """Return whether a layer is a linear layer or a convolution of any kind."""
    cls: Any = type(layer)
    spec = module_op(cls)
    return spec is not None and ("weighted_sum" in spec.traits or spec.name == "transposed_linear")


def _check_finite(target: QuantizedLayer) -> None:
    for name, parameter in target.layer.named_parameters(recurse=False):
        if not bool(parameter.isfinite().all()):
            raise PassArgsError(
                f"node {target.name!r} has a {name} with NaN or infinite values; "
                f"train or load it again"
            )


def _unusable(graph: MaseGraph, target: QuantizedLayer) -> str | None:
    """Return why no pass can set the weight of a layer, or None."""
    layer = target.layer
    if hasattr(layer, "variant_name"):
        return f"is a {layer.variant_name} layer, which has no weight in a number format"
    if not layer.formats:
        return "is bypassed and computes in float; remove `bypass` from its config"
    if parametrize.is_parametrized(layer):
        return "computes its weight from other tensors; remove the parametrization first"
    if layer in sync.read_modules(graph):
        return "has a weight that other nodes read"
    return None


def _check_all_found(
    name: str, named: Mapping[fx.Node, str], layers: Sequence[QuantizedLayer]
) -> None:
    called = {node for target in layers for node in target.nodes}
    for node in named:
        if node not in called:
            if node_formats(node):
                op = mase(node).common.mase_op
                raise PassArgsError(
                    f"node {node.name!r} is {op}, not a linear layer or convolution; {name} "
                    f"repairs only these, so leave it out"
                )
            raise PassArgsError(
                f"node {node.name!r} is not a quantised linear layer or convolution; "
                f"run the pass 'quantize' first, or leave it out"
            )


def _nothing(graph: MaseGraph, name: str, skipped: Mapping[str, str]) -> str:
    if skipped:
        node, reason = next(iter(skipped.items()))
        return f"there is no layer that {name} can repair: node {node!r} {reason}"
    return (
        "the chosen nodes include no quantised linear layer or convolution; "
        "run the pass 'quantize' before it"
    )


def with_parameter(layer: Quantized, name: str, value: Any) -> Quantized:
    """Return a copy of a layer with another parameter; masks and all else are shared."""
    new = sync.own_copy(layer)
    assert isinstance(new, Quantized)
    old = layer._parameters.get(name)
    trained = bool((layer._parameters["weight"] if old is None else old).requires_grad)  # type: ignore[union-attr]
    new.register_parameter(name, nn.Parameter(value.detach().clone(), requires_grad=trained))
    return new


def exchange_all(graph: MaseGraph, repaired: Iterable[tuple[QuantizedLayer, Quantized]]) -> None:
    """Put repaired layers into a graph, in the modes of those that they replace."""
    for target, new in repaired:
        new.training = target.layer.training
        sync.exchange(graph, target.nodes, new)
    graph.model.recompile()


def weight_mask(layer: Quantized) -> Any:
    """Return the mask on a layer's weight, or None."""
    return masks_of(layer).get("weight")
