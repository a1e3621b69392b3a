"""ONNX models of quantised networks, for actions that run them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.onnx.runtime import Runtime

__all__ = ["ONNX", "RunnableFormat", "exported", "runtime_for"]

ONNX = Path("software", "onnx")  # where a project has its ONNX files
RunnableFormat = Literal["onnx", "qdq", "qcdq", "integer"]  # those that onnxruntime can run


def runtime_for(graph: MaseGraph, export_format: RunnableFormat, *, threads: int) -> Runtime:
    """Export a graph to a temporary file, and return a session for it."""
    from chop.onnx.runtime import Runtime

    with tempfile.TemporaryDirectory() as folder:
        return Runtime(exported(graph, export_format, Path(folder)), threads=threads)


def exported(graph: MaseGraph, export_format: RunnableFormat, folder: Path) -> Path:
    """Write the ONNX file of a graph, and return where it is."""
    from chop.passes.base import run_pass

    file = folder / f"{export_format}.onnx"
    options: dict[str, Any] = {"save_path": file, "format": export_format, "silent": True}
    run_pass("export_onnx", graph, options)
    return file
