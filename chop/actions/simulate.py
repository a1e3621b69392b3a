"""`simulate`: run a circuit in Verilator and compare it with the network in integers."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.actions.circuits import (
    check_same_circuit,
    emit_options,
    given_source,
    network,
    source_of,
)
from chop.actions.config import ConfigError, RunConfig
from chop.actions.emit import written
from chop.actions.prepare import model_and_data
from chop.actions.project import Project
from chop.hardware.emit import EmitOptions
from chop.hardware.wave_format import WaveFormat

if TYPE_CHECKING:  # `ch simulate --help` does not import torch
    from torch import nn

    from chop.actions.circuit_test import CircuitReport
    from chop.hardware.projects import HardwareProject
    from chop.hardware.testbench import BenchResult
    from chop.ir.graph.mase_graph import MaseGraph

__all__ = ["run_simulate", "simulate"]

logger = logging.getLogger(__name__)


def simulate(
    model: nn.Module | MaseGraph | None = None,
    model_info: Any = None,
    task: str = "",
    dataset_info: Any = None,
    data_module: Any = None,
    load_name: str | None = None,
    load_type: str | None = None,
    run_emit: bool = False,
    skip_build: bool = False,
    skip_test: bool = False,
    trace_depth: int = 3,
    gui: bool = False,
    waves: bool = False,
    simulator: str = "verilator",
    *,
    project_dir: str | Path | None = None,
    max_samples: int | None = None,
    timeout: float | None = None,
    wave_format: WaveFormat = "vcd",
) -> CircuitReport | BenchResult | None:
    """Simulate the circuit in `project_dir`, by default the one that was emitted last.

    Without a model, the test bench that `emit_cocotb_transform_pass` wrote is run. With a model and
    a data module, the test split and boundary vectors are compared with the network in integers;
    `run_emit` emits the circuit first. A mismatch raises an error. `skip_build` uses the
    simulator that was built earlier, `skip_test` only builds it; `waves` (and `gui`) write the
    signals of the upper `trace_depth` levels of modules to `hardware/sim`, in `wave_format` if
    there is a model.
    """
    from chop.hardware.projects import HardwareProject, last_project, note_project
    from chop.log import show_logs_unless_configured

    show_logs_unless_configured()
    if simulator != "verilator":
        raise ValueError(f"simulator must be 'verilator', not {simulator!r}")
    is_new = project_dir is not None or (run_emit and model is not None)
    project = HardwareProject.at(project_dir) if is_new else last_project()
    if model is None:
        if run_emit:
            raise ValueError("run_emit needs the model to emit; give it, or emit the circuit first")
        return _run_bench(project, skip_build, skip_test, waves or gui, timeout)
    source = given_source(model, model_info, data_module, task or "cls", load_name, load_type)
    graph, integers = network(source)
    if run_emit:
        written(integers, EmitOptions(), project.hardware)
        note_project(project)
    from chop.actions.circuit_test import CircuitTest

    return CircuitTest(
        source=source,
        graph=graph,
        integers=integers,
        hardware=project.hardware,
        skip_build=skip_build,
        skip_test=skip_test,
        waves=wave_format if waves or gui else None,
        trace_depth=trace_depth,
        max_samples=max_samples,
        timeout=timeout,
    ).run()


def _run_bench(
    project: HardwareProject,
    skip_build: bool,
    skip_test: bool,
    waves: bool,
    timeout: float | None,
) -> BenchResult | None:
    """Run the test bench that a pass wrote."""
    from chop.actions.circuit_test import CircuitMismatch
    from chop.hardware.testbench import run_bench

    shown = {"waves": True} if waves else {}
    result = run_bench(
        project, skip_build=skip_build, skip_test=skip_test, timeout=timeout, **shown
    )
    if result is not None and not result.passed:
        failed = result.failures[0] if result.failures else "no test was run"
        raise CircuitMismatch(f"the test bench failed: {failed}; its output is in {result.log}")
    return result


def check_simulate(config: RunConfig, project: Project, from_file: Collection[str]) -> EmitOptions:
    """Refuse wrong options, and a project without a circuit, before anything is loaded."""
    from chop.hardware.circuit import Circuit

    options = emit_options(config)
    if config.wave_format is not None and not config.waves:
        raise ConfigError("--wave-format is for --waves; add --waves, or omit it")
    if config.run_emit:
        _refuse_vhdl(options.language)
        return options
    circuit = Circuit.read(project.hardware)
    _refuse_vhdl(circuit.language)
    check_same_circuit(config, circuit, project)
    return options


def _refuse_vhdl(language: str) -> None:
    if language != "verilog":
        raise ConfigError(
            "Verilator simulates Verilog only; emit the circuit with --language verilog to "
            "simulate it"
        )


def run_simulate(config: RunConfig, project: Project, options: EmitOptions) -> None:
    """Run `ch simulate`."""
    model, info, data_module = model_and_data(config)
    source = source_of(config, model, info, data_module)
    graph, integers = network(source)
    if config.run_emit:
        shown = not config.no_progress
        written(integers, options, project.hardware, progress=shown)
    project.create()
    from chop.actions.circuit_test import CircuitTest

    CircuitTest(
        source=source,
        graph=graph,
        integers=integers,
        hardware=project.hardware,
        skip_build=config.skip_build,
        skip_test=config.skip_test,
        waves=(config.wave_format or "vcd") if config.waves else None,
        max_samples=config.max_samples,
    ).run()
    logger.info("Simulation is completed")
