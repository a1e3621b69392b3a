"""Which layers a format hurts most."""

from chop.passes.graph.analysis.sensitivity.sensitivity import sensitivity_analysis_pass

__all__ = ["sensitivity_analysis_pass"]
