"""The operands to which a format applies, for every node or layer."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.ir.ops import OPS
from chop.passes.graph.transforms.quantize.config import OPERANDS
from chop.passes.graph.transforms.quantize.quantized_modules import layer_for


def rounded_operands(graph: Any) -> dict[str, tuple[str, ...]]:
    """Return the operands to which a format applies, for every layer and function that has any.

    Of a model without a graph, these are those of its layers.
    """
    if isinstance(graph, MaseGraph):
        layers = {node.name: _operands_at(graph, node) for node in graph.fx_graph.nodes}
    else:
        layers = {name: _operands_of(layer) for name, layer in graph.model.named_modules()}
    return {name: operands for name, operands in layers.items() if operands}


def _operands_at(graph: MaseGraph, node: fx.Node) -> tuple[str, ...]:
    module = module_of(graph, node)
    if module is not None:
        return _operands_of(module)
    spec = OPS.get(mase(node).common.get("mase_op") or "")
    return (*dict.fromkeys(spec.quantized), "data_out") if spec and spec.quantized else ()


def _operands_of(layer: nn.Module) -> tuple[str, ...]:
    """Return the operands of the quantized form of a layer, without a bias that it lacks."""
    form = layer_for(type(layer))
    if form is None:
        return ()
    missing = [name for name, value in layer._parameters.items() if value is None]
    return (*(operand for operand in form.operands if operand not in missing), "data_out")


def lacking_operands(graph: MaseGraph, nodes: list[fx.Node]) -> dict[str, tuple[str, ...]]:
    """Return the operands that nodes do not have: a key for one would copy every design."""
    rounded = rounded_operands(graph)
    names = [node.name for node in nodes if node.name in rounded]
    return {name: tuple(o for o in OPERANDS if o not in rounded[name]) for name in names}


def module_of(graph: MaseGraph, node: fx.Node) -> nn.Module | None:
    """Return the layer that a node calls."""
    return graph.modules[str(node.target)] if node.op == "call_module" else None
