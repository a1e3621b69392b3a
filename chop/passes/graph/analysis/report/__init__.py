from chop.passes.graph.analysis.report.report_graph import report_graph_analysis_pass
from chop.passes.graph.analysis.report.report_node import (
    report_node_hardware_type_analysis_pass,
    report_node_meta_param_analysis_pass,
    report_node_shape_analysis_pass,
    report_node_type_analysis_pass,
)

__all__ = [
    "report_graph_analysis_pass",
    "report_node_hardware_type_analysis_pass",
    "report_node_meta_param_analysis_pass",
    "report_node_shape_analysis_pass",
    "report_node_type_analysis_pass",
]
