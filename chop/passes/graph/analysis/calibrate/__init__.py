"""Histograms of activations, from which quantisation chooses fraction widths and scales."""

from chop.passes.graph.analysis.calibrate.calibrate import calibrate_analysis_pass

__all__ = ["calibrate_analysis_pass"]
