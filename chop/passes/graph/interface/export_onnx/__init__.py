"""From a graph to an ONNX file, op by op."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.passes.graph.interface.export_onnx.export import export_onnx_interface_pass
    from chop.passes.graph.interface.export_onnx.model import onnx_model
    from chop.passes.graph.interface.export_onnx.values import ExportError

__all__ = ["ExportError", "export_onnx_interface_pass", "onnx_model"]

__getattr__ = lazy.importer(__name__, __file__)
