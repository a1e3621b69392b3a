"""An entry for statistics beside every tensor of every node."""

from __future__ import annotations

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import SoftwareMeta, mase
from chop.passes.base import graph_pass
from chop.passes.graph.describe.software import tensors_in


@graph_pass("add_software_metadata", "analysis", needs=("common",))
def add_software_metadata_analysis_pass(graph: MaseGraph) -> None:
    """Create `software.args` and `software.results` with an empty `stat` for every tensor."""
    for node in graph.nodes:
        software = SoftwareMeta()
        for part, names in (("args", tensors_in(node)), ("results", _tensors_out(node))):
            if _has_part(node, part):
                software[part] = {name: {"stat": {}} for name in names}
        mase(node).parameters.software = software


def _has_part(node: fx.Node, part: str) -> bool:
    """Return whether a node has that part: inputs have only results, the output only arguments."""
    lacking = {"placeholder": "args", "get_attr": "args", "output": "results"}
    return lacking.get(node.op) != part


def _tensors_out(node: fx.Node) -> list[str]:
    return [name for name, _ in mase(node).common.results.tensors()]
