"""What the pass `cost` counts for a layer of tables on edges."""

from __future__ import annotations

from typing import Any

from chop.passes.graph.analysis.cost.call import Call, Count, plain, rule, size


@rule("edge_table")
def tables_on_edges(call: Call) -> Count:
    """Cost of one addition for each edge; a table is looked up without arithmetic."""
    module: Any = call.module
    rows = size(call.out) // module.n_out
    return plain(rows * module.n_in * module.n_out)
