from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.passes.graph.analysis.cost.flops import calculate_flops_pass
    from chop.passes.graph.analysis.quantization.calculate_avg_bits import (
        calculate_avg_bits_mg_analysis_pass,
    )

__all__ = ["calculate_avg_bits_mg_analysis_pass", "calculate_flops_pass"]

__getattr__ = lazy.importer(__name__, __file__)
