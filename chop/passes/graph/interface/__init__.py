"""Passes that save graphs and load them again, also for other tools."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.passes.graph.interface.export_onnx import export_onnx_interface_pass
    from chop.passes.graph.interface.save_and_load import (
        load_mase_graph_interface_pass,
        load_node_meta_param_interface_pass,
        metadata_value_type_cast_transform_pass,
        save_mase_graph_interface_pass,
        save_node_meta_param_interface_pass,
    )

__all__ = [
    "export_onnx_interface_pass",
    "load_mase_graph_interface_pass",
    "load_node_meta_param_interface_pass",
    "metadata_value_type_cast_transform_pass",
    "save_mase_graph_interface_pass",
    "save_node_meta_param_interface_pass",
]

__getattr__ = lazy.importer(__name__, __file__)
