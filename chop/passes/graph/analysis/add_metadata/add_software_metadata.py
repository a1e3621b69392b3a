"""An entry for statistics beside every tensor of every node."""

from __future__ import annotations

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import SoftwareMeta, mase
from chop.passes.base import graph_pass
from chop.passes.graph.describe.software import tensors_in


@graph_pass("add_software_metadata", "analysis", needs=("common",))
def add_software_metadata_analysis_pass(graph: MaseGraph) -> None:
    """Create `software.args` and `software.results` with an empty `stat` for every tensor.

    Inputs and attributes have only results, the output has only arguments.
    """
    for node in graph.nodes:
        software = SoftwareMeta()
        if node.op not in ("placeholder", "get_attr"):
            software["args"] = {name: {"stat": {}} for name in tensors_in(node)}
        if node.op != "output":
            results = mase(node).common.results.tensors()
            software["results"] = {name: {"stat": {}} for name, _ in results}
        mase(node).parameters.software = software
