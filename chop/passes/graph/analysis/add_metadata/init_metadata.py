"""Give every node, and the graph, an empty set of metadata."""

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_graph_metadata import MaseGraphMetadata
from chop.ir.graph.mase_metadata import MaseMetadata
from chop.passes.base import graph_pass


@graph_pass("init_metadata", "analysis")
def init_metadata_analysis_pass(graph: MaseGraph) -> None:
    """Start with empty metadata on all nodes; existing metadata is dropped."""
    for node in graph.nodes:
        node.meta["mase"] = MaseMetadata(node)
    graph.meta = {**graph.meta, "mase": MaseGraphMetadata(graph)}
