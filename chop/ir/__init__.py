"""The representation of a network: the graph, its ops and its metadata."""

from chop import extensions
from chop.ir.graph import MaseGraph, MaseGraphMetadata, MaseMetadata, MaseTracer

extensions.register(__name__)

__all__ = ["MaseGraph", "MaseGraphMetadata", "MaseMetadata", "MaseTracer"]
