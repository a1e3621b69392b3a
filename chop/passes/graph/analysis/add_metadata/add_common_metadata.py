"""Run the model once and record the op, arguments and results of every node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import graph_pass
from chop.passes.graph.describe.common import describe


@graph_pass("add_common_metadata", "analysis", needs=("metadata",))
def add_common_metadata_analysis_pass(
    graph: MaseGraph,
    *,
    dummy_in: Mapping[str, Any] | None = None,
    add_value: bool = True,
    force_device_meta: bool = False,
) -> None:
    """Record each node's op, arguments and results from one forward pass on `dummy_in`.

    `dummy_in` maps the names of the model's inputs to tensors; without it, the inputs of the
    capture are used, which MaseGraph was given or made. `add_value` keeps a clone of every
    tensor under "value". `force_device_meta` runs on torch's meta device: shapes and dtypes only,
    nothing is computed. The model stays unchanged: BatchNorm statistics, random state, mode and
    gradients.
    """
    describe(graph, dummy_in or {}, add_value, force_device_meta)
