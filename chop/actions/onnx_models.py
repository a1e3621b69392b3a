"""ONNX models of quantised networks, for actions that run them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from chop.ir.graph.mase_graph import MaseGraph
    from chop.onnx.runtime import Runtime

__all__ = ["RunnableFormat", "exported", "runtime_for"]

RunnableFormat = Literal["onnx", "qdq", "qcdq", "integer"]  # those that onnxruntime can run


def runtime_for(graph: MaseGraph, export_format: RunnableFormat, *, threads: int) -> Runtime:
    """Export a graph to a temporary file, and return a session for it."""
    from chop.onnx.runtime import Runtime

    with tempfile.TemporaryDirectory() as folder:
        return Runtime(exported(graph, export_format, Path(folder)), threads=threads)


def exported(graph: MaseGraph, export_format: RunnableFormat, folder: Path) -> Path:
    """Write the ONNX file of a graph, and return where it is."""
    from chop.passes.base import PASSES, PassArgsError, run_pass

    file = folder / f"{export_format}.onnx"
    if export_format == "integer":
        from chop.onnx.files import save_model
        from chop.onnx.integers import integer_model
        from chop.passes.graph.transforms.integers import integer_graph

        try:
            return save_model(integer_model(integer_graph(graph)), file)
        except NotImplementedError as error:
            raise PassArgsError(str(error)) from error
    if "export_onnx" not in PASSES:
        raise ValueError(f"the format {export_format} cannot be exported yet; use integer")
    options: dict[str, Any] = {"save_path": file, "format": export_format, "silent": True}
    run_pass("export_onnx", graph, options)
    return file
