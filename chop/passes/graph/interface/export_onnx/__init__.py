"""From a graph to an ONNX file, op by op."""

from __future__ import annotations

from typing import Any

from chop.ir.graph.mase_graph import MaseGraph
from chop.onnx import ModelBuilder
from chop.passes.graph.interface.export_onnx.observe import observed
from chop.passes.graph.interface.export_onnx.writer import GraphWriter

__all__ = ["float_model"]


def float_model(graph: MaseGraph, *, name: str = "network", metadata: Any = None) -> Any:
    """Return the float network as an `onnx.ModelProto`."""
    known = observed(graph)
    builder = ModelBuilder(name)
    GraphWriter(known, builder).write()
    return builder.model(metadata)
