from chop.passes.graph.analysis.flop_estimator.calculator.calc_modules import calculate_modules

__all__ = ["calculate_modules"]
