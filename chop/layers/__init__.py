"""Layers of MASE that models are built with, besides those of torch."""

from chop import extensions
from chop.layers.edge_table import EdgeTable
from chop.layers.frozen_edges import FrozenEdgeTable

extensions.register(__name__, transformed=True)

__all__ = ["EdgeTable", "FrozenEdgeTable"]
