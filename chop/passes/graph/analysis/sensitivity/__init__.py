"""Find the layers that lose most accuracy in a format."""

from chop.passes.graph.analysis.sensitivity.sensitivity import sensitivity_analysis_pass

__all__ = ["sensitivity_analysis_pass"]
