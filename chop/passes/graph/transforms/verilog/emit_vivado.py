"""Write a project of a circuit for Vivado."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from chop.hardware.vivado import PART, run_vivado, write_vivado
from chop.ir.graph.mase_graph import MaseGraph
from chop.options import PositiveFloat
from chop.passes.base import graph_pass
from chop.passes.graph.transforms.verilog.emission import emission_of
from chop.passes.options import OutputPath, Problem

logger = logging.getLogger(__name__)


@graph_pass("emit_vivado_project", "transform", needs=("common", "hardware"))
def emit_vivado_project_transform_pass(
    graph: MaseGraph,
    *,
    project_dir: OutputPath | None = None,
    part: str = PART,
    run: bool = False,
    timeout: PositiveFloat | None = None,
) -> dict[str, Any]:
    """Write a Tcl script to `hardware/vivado` that synthesises and places the circuit in Vivado.

    `part` is the FPGA. The clock is that of emit_verilog_top, which runs first and whose
    `project_dir` is used. Vivado is not needed to write the script; with `run` it is started, for
    at most `timeout` seconds, and writes reports of utilization, timing and power.
    """
    emission = emission_of(graph, "emit_vivado_project", project_dir)
    script = write_vivado(emission.circuit, emission.project, part)
    logger.info("Emitted %s", script)
    if not run:
        return {"script": str(script)}
    return {"script": str(script), "reports": [str(f) for f in run_vivado(script, timeout)]}


@emit_vivado_project_transform_pass.law
def _laws(options: Mapping[str, Any]) -> Iterator[Problem]:
    if not re.fullmatch(r"[A-Za-z0-9.-]+", options.get("part", PART)):
        yield Problem(
            "part", f"{options['part']!r} is not a name of an FPGA; use one like {PART!r}"
        )
