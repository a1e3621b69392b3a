from chop.passes.graph.analysis.cost.flops import calculate_flops_pass
from chop.passes.graph.analysis.quantization.calculate_avg_bits import (
    calculate_avg_bits_mg_analysis_pass,
)

__all__ = ["calculate_avg_bits_mg_analysis_pass", "calculate_flops_pass"]
