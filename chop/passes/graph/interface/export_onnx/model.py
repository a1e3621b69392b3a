"""The ONNX model of a graph, of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.ops import has_trait
from chop.onnx import ModelBuilder
from chop.onnx.metadata import QONNX_DOMAIN
from chop.onnx.targets import ExportFormat
from chop.passes.graph.describe.final import refuse_final
from chop.passes.graph.describe.formats import layers_in_float
from chop.passes.graph.interface.export_onnx.observe import KnownGraph, observed
from chop.passes.graph.interface.export_onnx.quantized import (
    FloatReader,
    QuantizedOperands,
    formats_of_node,
    quantizing_nodes,
)
from chop.passes.graph.interface.export_onnx.refusals import IN_FLOAT, REFUSALS
from chop.passes.graph.interface.export_onnx.rounding import FloatOperands, WrittenOperands
from chop.passes.graph.interface.export_onnx.values import ExportError
from chop.passes.graph.interface.export_onnx.writer import GraphWriter, named_leaves
from chop.passes.schema import PassArgsError

__all__ = ["onnx_model"]


def onnx_model(
    graph: MaseGraph,
    target: ExportFormat = "onnx",
    *,
    name: str = "network",
    metadata: Mapping[str, str] | None = None,
) -> Any:
    """Return a graph as an `onnx.ModelProto` of a kind; the graph stays as it is."""
    refuse_final(graph)
    if target == "integer":
        from chop.onnx.integers import integer_model

        try:
            integers = graph.to_integers()
        except PassArgsError:
            _refuse_float(layers_in_float(graph), target)
            raise
        outputs = _output_names(graph, len(integers.outputs))
        try:
            return integer_model(integers, name=name, metadata=metadata, outputs=outputs)
        except NotImplementedError as error:  # an op that has no integer nodes
            raise ExportError(str(error)) from error
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


def _output_names(graph: MaseGraph, count: int) -> list[str] | None:
    """Return the names of the results as in files of the other formats, if these are as many."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    names = [name for name, _ in named_leaves(output.args[0])]
    return names if len(names) == count else None


def _layer(known: KnownGraph, node: fx.Node) -> Any:
    return known.model.get_submodule(str(node.target)) if node.op == "call_module" else None


def _check_layers(known: KnownGraph, target: ExportFormat) -> None:
    """Refuse layers that a file of this kind cannot have, all of them at once."""
    rounded, in_float, odd, hooked = [], [], [], []
    own: dict[str, list[str]] = {}  # layers that round by themselves, by what messages call them
    for node in known.model.graph.nodes:
        if node.op not in ("call_module", "call_function", "call_method"):
            continue
        layer = _layer(known, node)
        variant = getattr(layer, "variant_name", None)
        if layer is not None and (layer._forward_hooks or layer._forward_pre_hooks):
            hooked.append(node.name)
        if variant is not None:
            odd.append(f"{node.name} ({variant})")
        elif kind := getattr(layer, "own_rounding", ""):
            own.setdefault(kind, []).append(node.name)
        elif formats_of_node(node, layer):
            rounded.append(node.name)
        elif has_trait(known.op(node), "weighted_sum"):
            in_float.append(node.name)
    _refuse(hooked, "these layers have hooks, which may change their values", "remove the hooks")
    if odd:
        raise ExportError(REFUSALS["odd"].say(names=_some(odd)))
    if target == "onnx":
        what = "`format='onnx'` is for float networks, and these nodes are quantised"
        _refuse(rounded, what, "use `format='qdq'` or another quantised one")
        return
    _refuse_float(in_float, target)
    if not rounded:
        for kind, names in own.items():
            what = f"`format='{target}'` has no nodes for these {kind}"
            _refuse(names, what, "use `format='integer'`")
        raise ExportError(
            f"`format='{target}'` is for quantised networks, and no node of this one is quantised; "
            f"use `format='onnx'`"
        )


def _refuse_float(names: list[str], target: ExportFormat) -> None:
    if names:
        raise ExportError(REFUSALS[IN_FLOAT].say(kind=target, names=_some(names)))


def _refuse(names: list[str], what: str, fix: str) -> None:
    if names:
        raise ExportError(f"{what}: {_some(names)}; {fix}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
