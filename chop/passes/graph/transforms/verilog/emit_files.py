"""Write the components and the memories of a circuit."""

from __future__ import annotations

from typing import Any

from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.base import graph_pass
from chop.passes.graph.transforms.verilog.emission import emission_of
from chop.passes.options import OutputPath


@graph_pass("emit_internal_rtl", "transform", needs=("common", "hardware"))
def emit_internal_rtl_transform_pass(
    graph: MaseGraph, *, project_dir: OutputPath | None = None
) -> dict[str, Any]:
    """Write the components of a circuit, in SystemVerilog, beside its top module.

    `project_dir` is the one of emit_verilog_top, which runs first.
    """
    return emission_of(graph, "emit_internal_rtl", project_dir).write(graph, "components")


@graph_pass("emit_bram", "transform", needs=("common", "hardware"))
def emit_bram_transform_pass(
    graph: MaseGraph, *, project_dir: OutputPath | None = None
) -> dict[str, Any]:
    """Write the memories of a circuit: `<node>_<param>_source.sv` and `<node>_<param>_rom.dat`.

    A line of the second file is a word in hexadecimal, with the first code in the lowest bits.
    `project_dir` is the one of emit_verilog_top, which runs first.
    """
    return emission_of(graph, "emit_bram", project_dir).write(graph, "memories")
