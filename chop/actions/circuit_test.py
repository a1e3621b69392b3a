"""Test a circuit on data: mismatches, accuracy, latency and throughput."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor

from chop.actions.samples import model_outputs, samples_to_test, score_of
from chop.actions.train import checked_task
from chop.actions.transform.source import Source
from chop.hardware.circuit import Circuit
from chop.hardware.simulation import (
    Build,
    CircuitCheck,
    Stalls,
    build_circuit,
    check_circuit,
    matching_graph,
)
from chop.hardware.wave_format import WaveFormat
from chop.integers import IntegerGraph
from chop.integers.digest import graph_digest
from chop.ir.graph.mase_graph import MaseGraph
from chop.system.files import write_whole

__all__ = ["CircuitMismatch", "CircuitReport", "CircuitTest", "circuit_values"]

logger = logging.getLogger(__name__)

RECORD = "simulation.json"
SHOWN = 16  # samples in the waves
STALLED = 64  # samples that a circuit with handshakes gets once more, with stalls


class CircuitMismatch(ValueError):
    """The circuit gives other results than the network in integers."""


@dataclass(frozen=True)
class CircuitReport:
    """What a simulation found; the score is `metric` of the circuit and of the quantised model."""

    samples: int
    boundary_vectors: int
    mismatches: int
    wrong_samples: int
    first_mismatch: str | None
    metric: str
    score: float
    model_score: float
    clock_period: float
    latency_cycles: int
    latency_ns: float
    interval_cycles: float
    samples_per_second: float
    lint_warnings: int

    def table(self) -> str:
        """Return the report for people."""
        vectors = f"{self.samples:,} and {self.boundary_vectors:,} boundary vectors"
        cycles = "one cycle" if self.interval_cycles == 1 else f"{self.interval_cycles:,.5g} cycles"
        rows = [
            ("Samples", vectors),
            ("Mismatches", f"{self.mismatches:,}"),
            (f"{self.metric.capitalize()} of the circuit", f"{self.score:.4f}"),
            (f"{self.metric.capitalize()} of the model", f"{self.model_score:.4f}"),
            ("Latency", f"{self.latency_cycles:,} cycles ({self.latency_ns:,.8g} ns)"),
            (
                "Throughput",
                f"{self.samples_per_second / 1e6:,.4g} million samples/s, {cycles} each",
            ),
            ("Lint warnings", f"{self.lint_warnings:,}"),
        ]
        return tabulate(rows, tablefmt="simple", disable_numparse=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class CircuitTest:
    """The circuit in the directory `hardware` of a project, and the network that it implements."""

    source: Source
    graph: MaseGraph
    integers: IntegerGraph
    hardware: Path
    skip_build: bool = False
    skip_test: bool = False
    waves: WaveFormat | None = None
    trace_depth: int = 3
    max_samples: int | None = None
    timeout: float | None = None

    @property
    def folder(self) -> Path:
        """The directory for builds, logs, waves and the report."""
        return self.hardware / "sim"

    def run(self) -> CircuitReport | None:
        """Build, compare and report; a mismatch raises an error. Without a test, return None."""
        circuit = Circuit.read(self.hardware)
        self._refuse_other(circuit)
        build = self._build(circuit)
        if self.skip_test:
            logger.info("The simulator is in %s", build.folder)
            return None
        data, most = self.source.data_module, self.max_samples
        inputs, labels = samples_to_test(data, self.graph.model, most)
        logger.info("Simulating %s samples...", f"{len(labels):,}")
        options: dict[str, Any] = {"folder": self.folder, "build": build, "timeout": self.timeout}
        check = check_circuit(self.integers, circuit, inputs, **options)
        if circuit.handshakes and not check.mismatches:
            few = {name: x[:STALLED] for name, x in inputs.items()}
            stalled = check_circuit(self.integers, circuit, few, stalls=Stalls(), **options)
            _refuse_mismatch(stalled, " when inputs and outputs are stalled")
        report = self._report(circuit, check, inputs, labels)
        write_whole(self.folder / RECORD, json.dumps(asdict(report), indent=2) + "\n")
        logger.info("Simulated the circuit in %s\n%s", self.hardware / "rtl", report.table())
        if self.waves:
            self._write_waves(circuit, check, inputs, options)
        _refuse_mismatch(check)
        return report

    def _refuse_other(self, circuit: Circuit) -> None:
        """Refuse a circuit that was emitted from another network."""
        what = self.source.load_name or "this model"
        if circuit.network and circuit.network != graph_digest(self.integers):
            raise ValueError(
                f"the circuit in {self.hardware / 'rtl'} was not emitted from {what}; emit it "
                f"again with `run_emit`, or give its own checkpoint with `load_name`"
            )

    def _build(self, circuit: Circuit) -> Build:
        start = time.perf_counter()
        if not self.skip_build:
            logger.info("Building the simulator...")
        build = build_circuit(
            circuit,
            self.folder,
            waves=self.waves,
            trace_depth=self.trace_depth,
            skip_build=self.skip_build,
            timeout=self.timeout,
        )
        took = f"took {time.perf_counter() - start:.1f} s" if build.is_new else "was done before"
        logger.info("Building the simulator %s", took)
        if warnings := build.warnings:
            logger.warning("Verilator has %d warnings: %s", len(warnings), warnings[0])
        return build

    def _report(
        self, circuit: Circuit, check: CircuitCheck, inputs: dict[str, Tensor], labels: Tensor
    ) -> CircuitReport:
        task = checked_task(self.source.task, self.source.data_module)
        simulation, period = check.simulation, circuit.clock_period
        size = self.source.data_module.batch_size
        codes = check.simulation.outputs[0][: check.samples]
        outputs = circuit_values(self.integers, matching_graph(self.integers, circuit), codes)
        expected = model_outputs(self.graph.model, inputs, size)
        return CircuitReport(
            samples=check.samples,
            boundary_vectors=check.boundary_vectors,
            mismatches=check.mismatches,
            wrong_samples=check.wrong_samples,
            first_mismatch=str(check.first) if check.first else None,
            metric=task.main,
            score=score_of(task, outputs, labels),
            model_score=score_of(task, expected, labels),
            clock_period=period,
            latency_cycles=simulation.latency,
            latency_ns=simulation.latency * period,
            interval_cycles=simulation.interval,
            samples_per_second=1e9 / (simulation.interval * period),
            lint_warnings=len(simulation.warnings),
        )

    def _write_waves(
        self,
        circuit: Circuit,
        check: CircuitCheck,
        inputs: dict[str, Tensor],
        options: dict[str, Any],
    ) -> None:
        """Write the waves of the first samples, or of those up to the first mismatch."""
        wrong = check.first.sample if check.first is not None else 0
        first = max(0, min(wrong, check.samples - 1) - SHOWN + 1)
        shown = {name: x[first : first + SHOWN] for name, x in inputs.items()}
        file = self.folder / f"waves.{self.waves}"
        check_circuit(self.integers, circuit, shown, boundaries=False, waves=file, **options)
        last = min(first + SHOWN, check.samples) - 1
        logger.info("Waves of samples %d to %d are in %s", first, last, file)


def circuit_values(integers: IntegerGraph, circuit_graph: IntegerGraph, codes: Tensor) -> Tensor:
    """Return what a circuit gives as floats; classes, of an argmax at its end, as one-hot."""
    if circuit_graph.outputs == integers.outputs:
        return integers.codes(integers.outputs[0]).values(codes).float()
    classes = torch.arange(integers.codes(integers.outputs[0]).shape[0])
    return (codes[:, None] == classes).float()  # a faulty circuit may give a class that is none


def _refuse_mismatch(check: CircuitCheck, when: str = "") -> None:
    if check.first is None:
        return
    total = check.samples + check.boundary_vectors
    raise CircuitMismatch(
        f"the circuit differs from the integer graph{when}: {check.mismatches:,} codes in "
        f"{check.wrong_samples:,} of {total:,} samples; the first is in {check.first}"
    )
