"""Layers of MASE that models are built with, besides those of torch."""

from chop.layers.edge_table import EdgeTable
from chop.layers.frozen_edges import FrozenEdgeTable

__all__ = ["EdgeTable", "FrozenEdgeTable"]
