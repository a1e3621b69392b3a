from chop.passes.graph.analysis.cost.flops import calculate_modules

__all__ = ["calculate_modules"]
