"""Write the circuit of a network of truth tables."""

from __future__ import annotations

from typing import Any

from chop.hardware.emit import EmitOptions
from chop.hardware.projects import HardwareProject
from chop.hardware.unrolled import unrolled_circuit
from chop.ir.graph.mase_graph import MaseGraph
from chop.options import PositiveFloat
from chop.passes.base import PassArgsError, graph_pass
from chop.passes.graph.transforms.integers import integer_graph
from chop.passes.graph.transforms.logicnets import LogicNets
from chop.passes.graph.transforms.verilog.emission import Emission
from chop.passes.graph.transforms.verilog.emit_top import check_top_name
from chop.passes.options import OutputPath


@graph_pass("emit_logicnets", "transform", needs=("common",))
def emit_logicnets_transform_pass(
    graph: MaseGraph,
    *,
    project_dir: OutputPath | None = None,
    top_name: str = "top",
    clock_period: PositiveFloat = EmitOptions.clock,
) -> dict[str, Any]:
    """Turn a network with LogicNets layers into a circuit, and write all of its files.

    Each neuron is a truth table in logic, and the circuit takes a new sample with every clock. The
    module `top_name` and its parts go to `hardware/rtl` in `project_dir`, by default
    `mase_output/<top>`. `clock_period` is in ns. Merge norms and activations with
    logicnets_fusion first.
    """
    if not any(isinstance(layer, LogicNets) for layer in graph.model.modules()):
        raise PassArgsError(
            "the graph has no LogicNets layer; run quantize with name = 'logicnets' first, or emit "
            "it with ch emit"
        )
    project = HardwareProject.at(project_dir, top_name)
    integers = integer_graph(graph)
    try:
        circuit = unrolled_circuit(integers, clock_period=clock_period, top=top_name)
    except ValueError as error:
        raise PassArgsError(str(error)) from error
    rest = Emission(project, circuit, integers, frozenset({"components", "memories"}))
    written = rest.write(graph, "top")
    return {**written, "files": sorted(circuit.files), "latency_cycles": circuit.latency}


emit_logicnets_transform_pass.law(check_top_name)
