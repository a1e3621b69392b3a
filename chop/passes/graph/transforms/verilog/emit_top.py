"""Write the top module of a circuit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chop.hardware.emit import EmitOptions
from chop.hardware.names import legal_name
from chop.hardware.projects import HardwareProject
from chop.hardware.streaming import streaming_circuit
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.graph.mase_metadata import mase
from chop.options import PositiveFloat
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.transforms.integers import integer_graph
from chop.passes.graph.transforms.verilog.emission import Emission
from chop.passes.options import OutputPath, Problem


@graph_pass("emit_verilog_top", "transform", needs=("common", "hardware"))
def emit_verilog_top_transform_pass(
    graph: MaseGraph,
    *,
    project_dir: OutputPath | None = None,
    top_name: str = "top",
    clock_period: PositiveFloat = EmitOptions.clock,
) -> dict[str, Any]:
    """Turn a quantised graph into a circuit, and write its top module.

    The module `top_name` goes to `hardware/rtl` in `project_dir`, by default `mase_output/<top>`.
    It connects one component per op by streams with valid and ready; `max_parallelism` of the
    hardware metadata bounds the multiplications of a layer per clock. Results that the metadata
    has in fixed point are rounded to that format. `clock_period` is in ns.
    """
    project = HardwareProject.at(project_dir, top_name)
    integers = integer_graph(graph, as_noted=True)
    parallelism = _max_parallelism(graph)
    try:
        circuit = streaming_circuit(
            integers, max_parallelism=parallelism, clock_period=clock_period, top=top_name
        )
    except ValueError as error:
        raise PassArgsError(str(error)) from error
    return Emission(project, circuit, integers).write(graph, "top")


@emit_verilog_top_transform_pass.law
def check_top_name(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem if `top_name` cannot be the name of a module."""
    name = options.get("top_name", "top")
    if (legal := legal_name(name)) != name:
        yield Problem(
            "top_name", f"{name!r} is not a legal name of a module; use one like {legal!r}"
        )


def _max_parallelism(graph: MaseGraph) -> int:
    """Return the largest number in the hardware metadata."""
    found = [mase(node).hardware.get("max_parallelism") for node in graph.nodes]
    known = [number for number in found if isinstance(number, int) and number > 0]
    if not known:
        raise PassArgsError(
            "the hardware metadata has no max_parallelism; run add_hardware_metadata_analysis_pass"
        )
    return max(known)
