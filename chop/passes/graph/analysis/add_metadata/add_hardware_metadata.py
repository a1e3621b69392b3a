"""Record how each node maps to hardware: toolchain, module, interface, parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from annotated_types import Ge

from chop.hardware.emit import DEFAULT_PARALLELISM
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import HardwareMeta, mase
from chop.passes.base import graph_pass
from chop.passes.graph.describe.hardware import hardware_of
from chop.passes.graph.describe.nodes import get_hardware_nodes
from chop.passes.options import Problem

Parallelism = Annotated[int, Ge(1)]


@graph_pass("add_hardware_metadata", "analysis", needs=("common",))
def add_hardware_metadata_analysis_pass(
    graph: MaseGraph,
    *,
    parallelism: Sequence[Parallelism] = (1, 4),
    max_parallelism: Parallelism | Sequence[Parallelism] = DEFAULT_PARALLELISM,
) -> None:
    """Record for every node how it maps to hardware; nothing is emitted yet.

    `max_parallelism` is the most multiplications that a layer of the circuit does per clock; of a
    list, which has a number per dimension, it is the product. `parallelism` is the number of
    elements of each dimension that a block takes per cycle, the last number for the last dimension;
    if it does not divide the size, the next smaller divisor is used.
    """
    most = max_parallelism if isinstance(max_parallelism, int) else math.prod(max_parallelism)
    computing = set(get_hardware_nodes(graph))
    sources: dict[str, None] = {}
    for node in graph.nodes:
        if node in computing:
            hardware = hardware_of(graph, node, parallelism, most)
            sources |= dict.fromkeys(hardware.dependence_files)
        else:
            hardware = HardwareMeta(
                is_implicit=True,
                device_id=0,
                parallelism=list(parallelism),
                max_parallelism=most,
            )
        mase(node).parameters.hardware = hardware
    graph.meta["mase"].hardware.verilog_sources = list(sources)


@add_hardware_metadata_analysis_pass.law
def _laws(options: Mapping[str, Any]) -> Iterator[Problem]:
    for key in ("parallelism", "max_parallelism"):
        if isinstance(options[key], Sequence) and not options[key]:
            yield Problem(key, f"{key} is empty; give a list of numbers from 1")
