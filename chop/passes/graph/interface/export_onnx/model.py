"""The ONNX model of a graph, of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.ops import has_trait
from chop.onnx import ModelBuilder
from chop.onnx.targets import ExportFormat
from chop.passes.graph.interface.export_onnx.observe import KnownGraph, observed
from chop.passes.graph.interface.export_onnx.qonnx import QONNX_DOMAIN
from chop.passes.graph.interface.export_onnx.quantized import (
    FloatReader,
    QuantizedOperands,
    formats_of_node,
    quantizing_nodes,
)
from chop.passes.graph.interface.export_onnx.rounding import FloatOperands, WrittenOperands
from chop.passes.graph.interface.export_onnx.values import ExportError
from chop.passes.graph.interface.export_onnx.writer import GraphWriter

__all__ = ["onnx_model"]


def onnx_model(
    graph: MaseGraph,
    target: ExportFormat = "onnx",
    *,
    name: str = "network",
    metadata: Mapping[str, str] | None = None,
) -> Any:
    """Return a graph as an `onnx.ModelProto` of a kind; the graph stays as it is."""
    if target == "integer":
        from chop.onnx.integers import integer_model  # type: ignore[import-not-found]

        return integer_model(graph.to_integers(), name=name, metadata=metadata)
    known = observed(graph)
    _check_layers(known, target)
    nodes = quantizing_nodes(target)

    def rounding(node: fx.Node) -> WrittenOperands:
        layer = _layer(known, node)
        formats = formats_of_node(node, layer)
        if formats:
            return QuantizedOperands(nodes, target, formats, layer)
        return FloatReader(nodes, known) if target != "onnx" else FloatOperands()

    domains = {QONNX_DOMAIN: 1} if target == "qonnx" else {}
    builder = ModelBuilder(name, domains=domains)
    GraphWriter(known, builder, rounding, gemm=nodes.gemm or target == "onnx").write()
    return builder.model(metadata)


def _layer(known: KnownGraph, node: fx.Node) -> Any:
    return known.model.get_submodule(str(node.target)) if node.op == "call_module" else None


def _check_layers(known: KnownGraph, target: ExportFormat) -> None:
    """Refuse layers that a file of this kind cannot have, all of them at once."""
    rounded, in_float, odd = [], [], []
    for node in known.model.graph.nodes:
        if node.op not in ("call_module", "call_function", "call_method"):
            continue
        layer, op = _layer(known, node), known.op(node)
        variant = getattr(layer, "variant_name", None)
        if variant is not None:
            odd.append(f"{node.name} ({variant})")
        elif formats_of_node(node, layer):
            rounded.append(node.name)
        elif has_trait(op, "weighted_sum") or has_trait(op, "inner_products"):
            in_float.append(node.name)
    if odd:
        raise ExportError(
            f"these layers have no such nodes: {', '.join(odd)}; use `format='integer'`"
        )
    if target == "onnx" and rounded:
        raise ExportError(
            f"`format='onnx'` is for float networks, and these nodes are quantised: "
            f"{_some(rounded)}; use qdq, qcdq, qonnx or integer"
        )
    if target != "onnx" and in_float:
        raise ExportError(
            f"`format='{target}'` is for quantised networks, and these layers are in float: "
            f"{_some(in_float)}; quantise them first, or use `format='onnx'`"
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
