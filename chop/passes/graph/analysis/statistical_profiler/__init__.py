from chop.passes.graph.analysis.statistical_profiler.profile_statistics import (
    profile_statistics_analysis_pass,
)

__all__ = ["profile_statistics_analysis_pass"]
