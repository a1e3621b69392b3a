"""`emit`: write the circuit of a quantised network."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.circuits import (
    command_on_circuit,
    emit_options,
    emit_options_of,
    given_source,
    network,
    source_of,
)
from chop.actions.config import RunConfig
from chop.actions.prepare import model_and_data
from chop.actions.project import Project
from chop.hardware.emit import Backend, EmitOptions, Language, emit_circuit

if TYPE_CHECKING:  # `ch emit --help` does not import torch
    from torch import nn

    from chop.hardware.circuit import Circuit, Port
    from chop.hardware.estimate import Cost
    from chop.integers import IntegerGraph
    from chop.ir.graph.mase_graph import MaseGraph

__all__ = ["emit", "run_emit"]

logger = logging.getLogger(__name__)


def emit(
    model: nn.Module | MaseGraph,
    model_info: Any = None,
    task: str = "cls",
    dataset_info: Any = None,
    data_module: Any = None,
    load_name: str | None = None,
    load_type: str | None = None,
    *,
    project_dir: str | Path | None = None,
    backend: Backend = "unrolled",
    clock: float = EmitOptions.clock,
    language: Language = "verilog",
    max_parallelism: int | None = None,
    max_adders: int = EmitOptions.max_adders,
    argmax: bool = False,
) -> Circuit:
    """Write the circuit of a quantised model or graph to `hardware/rtl` in `project_dir`.

    The directory is `mase_output/top` by default. `clock` is the clock period in ns.
    """
    from chop.hardware.projects import HardwareProject, note_project
    from chop.log import show_logs_unless_configured

    options = emit_options_of(
        {
            "backend": backend,
            "clock": clock,
            "language": language,
            "max_parallelism": max_parallelism,
            "max_adders": max_adders,
            "argmax": argmax,
        }
    )
    show_logs_unless_configured()
    project = HardwareProject.at(project_dir)
    source = given_source(model, model_info, data_module, task, load_name, load_type)
    circuit = written(network(source)[1], options, project.hardware)
    note_project(project)
    return circuit


def check_emit(config: RunConfig, project: Project, from_file: Collection[str]) -> EmitOptions:
    """Refuse wrong options, and a directory with other files, before anything is loaded."""
    from chop.hardware.circuit import check_place

    options = emit_options(config)
    check_place(project.hardware)
    return options


def run_emit(config: RunConfig, project: Project, options: EmitOptions) -> None:
    """Run `ch emit`."""
    model, info, data_module = model_and_data(config)
    source = source_of(config, model, info, data_module)
    _, integers = network(source)
    circuit = written(integers, options, project.hardware, progress=not config.no_progress)
    project.create()
    if circuit.language == "verilog":
        logger.info("Simulate it with: %s", command_on_circuit("simulate", config, project))
    logger.info("Emission is completed")


def written(
    integers: IntegerGraph, options: EmitOptions, hardware: Path, *, progress: bool = True
) -> Circuit:
    """Write the circuit of a network, and log what it is."""
    from chop.hardware.circuit import check_place

    check_place(hardware)
    logger.info("Emitting a circuit (%s)...", options.backend)
    circuit = emit_circuit(integers, options, progress=progress)
    rtl = circuit.write(hardware)
    cost = _estimated(integers, options)
    table = described(circuit, cost)
    logger.info("Emitted %d files to %s\n%s", len(circuit.files), rtl, table)
    for note in circuit.notes:
        logger.info("%s", note)
    return circuit


def _estimated(integers: IntegerGraph, options: EmitOptions) -> Cost | None:
    """Return the resources that an unrolled circuit will need."""
    if options.backend != "unrolled":
        return None
    from chop.hardware.estimate import estimate

    whole = integers.with_argmax() if options.argmax else integers
    limit = options.max_adders
    return estimate(whole, clock_period=options.clock, max_adders=limit).total


def described(circuit: Circuit, cost: Cost | None = None) -> str:
    """Return a table about a circuit."""
    from tabulate import tabulate

    period, each = circuit.clock_period, circuit.interval
    language = "VHDL" if circuit.language == "vhdl" else "SystemVerilog"
    rows = [
        ("Backend", circuit.backend),
        ("Language", language),
        ("Top module", circuit.top),
        *((port.name, _port(port)) for port in (*circuit.inputs, *circuit.outputs)),
        ("Clock", f"{period:g} ns ({1000 / period:,.6g} MHz)"),
        ("Latency", f"{circuit.latency:,} cycles ({circuit.latency * period:,.8g} ns)"),
        ("Interval", "one sample per clock" if each == 1 else f"{each:,} cycles per sample"),
    ]
    if cost is not None:
        rows.append(("Estimate", f"{cost.lut:,.0f} LUTs, {cost.ff:,.0f} flip-flops"))
    return tabulate(rows, tablefmt="simple", disable_numparse=True)


def _port(port: Port) -> str:
    kind = f"{'signed' if port.signed else 'unsigned'} {port.width}-bit"
    shape = " × ".join(map(str, port.shape)) or "1"
    beats = f", {port.beats:,} beats of {port.lanes}" if port.beats > 1 else ""
    codes = "code" if port.size == 1 else "codes"
    return f"{shape} {codes}, {kind}{beats}"
