"""From a graph to an ONNX file, op by op."""

from chop.passes.graph.interface.export_onnx.model import onnx_model

__all__ = ["onnx_model"]
