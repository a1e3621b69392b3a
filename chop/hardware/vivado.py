"""A project for Vivado: a Tcl script that adds the sources, runs, and writes reports."""

from __future__ import annotations

from pathlib import Path

from chop.hardware.circuit import Circuit
from chop.hardware.projects import HardwareProject
from chop.hardware.tools import Tool, ToolError, find_program, run_tool
from chop.system.files import write_whole

__all__ = ["PART", "run_vivado", "write_vivado"]

PART = "xcvu13p-flga2577-2-e"
REPORTS = ("utilization.rpt", "utilization_by_module.rpt", "timing.rpt", "power.rpt")

SCRIPT = """\
# Synthesises and places the circuit: vivado -mode batch -source {script}
# The reports are written to this directory, the project to {name}_project.

set here [file dirname [file normalize [info script]]]
cd $here
create_project {name}_project {name}_project -part {part} -force
add_files [list \\
{sources}
]
add_files -fileset constrs_1 [list [file join $here {name}.xdc]]
set_property top {name} [current_fileset]
# the ports stay inside the chip: the circuit is a part of a larger design
set_property -name {{STEPS.SYNTH_DESIGN.ARGS.MORE OPTIONS}} -value {{-mode out_of_context}} \\
    -objects [get_runs synth_1]
update_compile_order -fileset sources_1

launch_runs synth_1
wait_on_run synth_1
if {{[get_property PROGRESS [get_runs synth_1]] ne "100%"}} {{ error "the synthesis failed" }}
launch_runs impl_1
wait_on_run impl_1
if {{[get_property PROGRESS [get_runs impl_1]] ne "100%"}} {{ error "the implementation failed" }}

open_run impl_1
report_utilization -file utilization.rpt
report_utilization -hierarchical -file utilization_by_module.rpt
report_timing_summary -file timing.rpt
report_power -file power.rpt
"""
CONSTRAINTS = """\
create_clock -name clk -period {period:.3f} [get_ports clk]
"""


def write_vivado(circuit: Circuit, project: HardwareProject, part: str = PART) -> Path:
    """Write the script and the clock of a circuit to `hardware/vivado`, and return the script."""
    suffixes = (".vhd", ".vhdl") if circuit.language == "vhdl" else (".v", ".sv")
    names = sorted(name for name in circuit.files if name.endswith(suffixes))
    sources = "\n".join(f'    [file join $here .. rtl "{name}"] \\' for name in names)
    script = project.vivado / f"{circuit.top}.tcl"
    text = SCRIPT.format(name=circuit.top, script=script.name, part=part, sources=sources)
    write_whole(script.with_suffix(".xdc"), CONSTRAINTS.format(period=circuit.clock_period))
    return write_whole(script, text)


def run_vivado(script: Path, timeout: float | None = None) -> list[Path]:
    """Run the script with Vivado, which has to be installed, and return the reports."""
    program = find_program("vivado")
    if program is None:
        raise ToolError(
            f"Vivado is not installed, or not in PATH; install it, or run {script.name} where it is"
        )
    tool = Tool("Vivado", (program, "-mode", "batch", "-nojournal", "-nolog", "-source"))
    log = script.with_suffix(".log")
    run_tool(tool, [str(script)], log=log, folder=script.parent, timeout=timeout)
    return [file for name in REPORTS if (file := script.with_name(name)).is_file()]
