"""`synth`: what an emitted circuit occupies on an FPGA."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chop.actions.circuits import (
    check_same_circuit,
    emit_options,
    network,
    source_of,
    table_options,
)
from chop.actions.config import ConfigError, RunConfig
from chop.actions.emit import written
from chop.actions.prepare import model_and_data
from chop.actions.project import Project
from chop.hardware.emit import EmitOptions
from chop.hardware.synth_options import SynthOptions, Target

if TYPE_CHECKING:  # `ch synth --help` does not import torch
    from chop.hardware.synthesis import Synthesis, VendorReport

__all__ = ["run_synth", "synth"]

logger = logging.getLogger(__name__)


def synth(
    project_dir: str | Path | None = None,
    *,
    target: Target = SynthOptions.target,
    place: bool = False,
    timeout: float = SynthOptions.timeout,
    reports: Sequence[str | Path] = (),
) -> Synthesis:
    """Synthesise the circuit in `project_dir`, by default the one that was emitted last.

    The result is logged as a table and written to `hardware/synth`; `reports` of Vivado or Quartus
    are shown beside it.
    """
    from chop.hardware.projects import HardwareProject, last_project
    from chop.log import show_logs_unless_configured

    show_logs_unless_configured()
    options = SynthOptions(target=target, place=place, timeout=timeout)
    project = last_project() if project_dir is None else HardwareProject.at(project_dir)
    return _synthesized(project.hardware, options, _read(reports))


@dataclass(frozen=True)
class Synth:
    """Options of `ch synth` that were checked."""

    options: SynthOptions
    reports: Sequence[VendorReport]
    emit: EmitOptions | None  # of a circuit that is emitted first


def check_synth(config: RunConfig, project: Project, from_file: Collection[str]) -> Synth:
    """Refuse wrong options, and a project without a circuit, before anything is loaded."""
    from chop.hardware.circuit import Circuit

    options, reports = table_options(config, "synth", SynthOptions), _read(config.reports)
    emit = emit_options(config) if config.run_emit else None
    if emit is not None:
        language = emit.language
    else:
        circuit = Circuit.read(project.hardware)
        check_same_circuit(config, circuit, project)
        language = circuit.language
    if language != "verilog":
        raise ConfigError("yosys reads Verilog, not VHDL; emit the circuit with --language verilog")
    return Synth(options, reports, emit)


def run_synth(config: RunConfig, project: Project, synth: Synth) -> None:
    """Run `ch synth`."""
    if synth.emit is not None:
        model, info, data_module = model_and_data(config)
        _, integers = network(source_of(config, model, info, data_module))
        shown = not config.no_progress
        written(integers, synth.emit, project.hardware, progress=shown)
    project.create()
    _synthesized(project.hardware, synth.options, synth.reports)


def _read(paths: Sequence[str | Path]) -> list[VendorReport]:
    """Return the reports, those of one tool as one."""
    from chop.hardware.synthesis import read_report

    by_tool: dict[str, VendorReport] = {}
    for path in paths:
        try:
            report = read_report(path)
        except ValueError as error:
            raise ConfigError(f"--report: {error}") from error
        known = by_tool.get(report.tool)
        by_tool[report.tool] = report if known is None else known.with_more(report)
    return list(by_tool.values())


def _synthesized(
    hardware: Path, options: SynthOptions, reports: Sequence[VendorReport]
) -> Synthesis:
    """Synthesise the circuit of a project, log the result and write its files."""
    from chop.hardware.circuit import Circuit
    from chop.hardware.synthesis import synthesize_circuit
    from chop.hardware.synthesis.show import (
        clock_warning,
        comparison_table,
        layer_table,
        write_synthesis,
    )

    circuit, folder = Circuit.read(hardware), hardware / "synth"
    logger.info("Synthesising the circuit in %s for %s...", hardware, options.target)
    result = synthesize_circuit(
        circuit,
        target=options.target,
        folder=folder,
        timeout=options.timeout,
        place=options.place,
    )
    logger.info("Resources on %s, by %s\n%s", result.target, result.tool, layer_table(result))
    if (placed := result.placement) is not None:
        logger.info("Clock rate on %s: %.4g MHz", placed.device, placed.clock_mhz)
    if warning := clock_warning(result, circuit):
        logger.warning("%s", warning[0].upper() + warning[1:])
    if reports:
        logger.info("Beside the reports\n%s", comparison_table(result, circuit, reports))
    files = write_synthesis(result, circuit, reports, folder)
    logger.info("Written to %s: %s", folder, ", ".join(file.name for file in files))
    return result
