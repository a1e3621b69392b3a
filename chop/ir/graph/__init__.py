from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_graph_metadata import MaseGraphMetadata
from chop.ir.graph.mase_metadata import MaseMetadata
from chop.ir.graph.tracer import MaseTracer

__all__ = ["MaseGraph", "MaseGraphMetadata", "MaseMetadata", "MaseTracer"]
