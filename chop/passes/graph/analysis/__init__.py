"""Passes that read a graph and leave it unchanged."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.passes.graph.analysis.add_metadata import (
        add_common_metadata_analysis_pass,
        add_hardware_metadata_analysis_pass,
        add_software_metadata_analysis_pass,
        init_metadata_analysis_pass,
    )
    from chop.passes.graph.analysis.calibrate import calibrate_analysis_pass
    from chop.passes.graph.analysis.cost import (
        calculate_flops_analysis_pass,
        cost_analysis_pass,
    )
    from chop.passes.graph.analysis.hook_inspection import hook_inspection_analysis_pass
    from chop.passes.graph.analysis.pruning import (
        add_movement_metadata_analysis_pass,
        add_natural_sparsity_metadata_analysis_pass,
        add_pruning_metadata_analysis_pass,
    )
    from chop.passes.graph.analysis.quantization import calculate_avg_bits_mg_analysis_pass
    from chop.passes.graph.analysis.report import (
        report_graph_analysis_pass,
        report_node_hardware_type_analysis_pass,
        report_node_meta_param_analysis_pass,
        report_node_shape_analysis_pass,
        report_node_type_analysis_pass,
    )
    from chop.passes.graph.analysis.sensitivity import sensitivity_analysis_pass
    from chop.passes.graph.analysis.statistical_profiler import profile_statistics_analysis_pass
    from chop.passes.graph.analysis.verify import (
        verify_common_metadata_analysis_pass,
        verify_hardware_metadata_analysis_pass,
        verify_metadata_analysis_pass,
        verify_software_metadata_analysis_pass,
    )
    from chop.passes.graph.analysis.verify_integers import verify_integers_analysis_pass

__all__ = [
    "add_common_metadata_analysis_pass",
    "add_hardware_metadata_analysis_pass",
    "add_movement_metadata_analysis_pass",
    "add_natural_sparsity_metadata_analysis_pass",
    "add_pruning_metadata_analysis_pass",
    "add_software_metadata_analysis_pass",
    "calculate_avg_bits_mg_analysis_pass",
    "calculate_flops_analysis_pass",
    "calibrate_analysis_pass",
    "cost_analysis_pass",
    "hook_inspection_analysis_pass",
    "init_metadata_analysis_pass",
    "profile_statistics_analysis_pass",
    "report_graph_analysis_pass",
    "report_node_hardware_type_analysis_pass",
    "report_node_meta_param_analysis_pass",
    "report_node_shape_analysis_pass",
    "report_node_type_analysis_pass",
    "sensitivity_analysis_pass",
    "verify_common_metadata_analysis_pass",
    "verify_hardware_metadata_analysis_pass",
    "verify_integers_analysis_pass",
    "verify_metadata_analysis_pass",
    "verify_software_metadata_analysis_pass",
]

__getattr__ = lazy.importer(__name__, __file__)
