"""The labs' import path of the operation counts, which live in `analysis/cost`."""

from chop.passes.graph.analysis.flop_estimator.calculator import calculate_modules

__all__ = ["calculate_modules"]
