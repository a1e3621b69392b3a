"""Tables on edges: each output adds up a truth table of each input."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.methods.edge_tables.edge_table import EdgeTable
    from chop.methods.edge_tables.frozen_edges import FrozenEdgeTable

__all__ = ["EdgeTable", "FrozenEdgeTable"]

__getattr__ = lazy.importer(__name__, __file__)
