"""The labs' import path of module analyses."""

from chop.passes.module.calculate_avg_bits import calculate_avg_bits_module_analysis_pass
from chop.passes.module.report_trainable_parameters import report_trainable_parameters_analysis_pass

__all__ = ["calculate_avg_bits_module_analysis_pass", "report_trainable_parameters_analysis_pass"]
