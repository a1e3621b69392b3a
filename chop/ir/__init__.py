"""The representation of a network: the graph, its ops and its metadata."""

from chop.ir.graph import MaseGraph, MaseGraphMetadata, MaseMetadata, MaseTracer

__all__ = ["MaseGraph", "MaseGraphMetadata", "MaseMetadata", "MaseTracer"]
