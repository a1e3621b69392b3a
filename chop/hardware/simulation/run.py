"""Run samples through a circuit and measure when its results come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.hardware.circuit import Circuit, Port
from chop.hardware.simulation.build import Build, build_circuit
from chop.hardware.tools import Tool, ToolError, run_tool
from chop.hardware.wave_format import wave_format
from chop.system.files import part_folder

__all__ = ["Simulation", "Stalls", "simulate_circuit"]

PACKED = 256  # samples that are packed at once
PATIENCE = 1000  # cycles without progress, beyond those that the circuit announces


@dataclass(frozen=True)
class Stalls:
    """Shares of the cycles in which a test bench offers no input or takes no output.

    They are pseudo-random. A circuit without handshakes has no stalls of outputs.
    """

    inputs: float = 0.3
    outputs: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 0 and below 1, not {getattr(self, name)}"
                )


@dataclass(frozen=True, eq=False)
class Simulation:
    """The results of a circuit, as codes per output port, and when they came.

    `started` and `finished` are the cycles of the first beat of each sample and of the last beat of
    its result.
    """

    outputs: tuple[Tensor, ...]
    started: Tensor
    finished: Tensor
    cycles: int
    build: Build

    @property
    def latency(self) -> int:
        """The cycles from the first beat of the first sample to the last beat of its result."""
        return int(self.finished[0] - self.started[0])

    @property
    def interval(self) -> float:
        """The mean number of cycles between the results of two samples."""
        if len(self.finished) < 2:
            return float(self.latency)
        return float(self.finished[-1] - self.finished[0]) / (len(self.finished) - 1)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of Verilator at -Wall."""
        return self.build.warnings


def simulate_circuit(
    circuit: Circuit,
    inputs: Sequence[Tensor],
    *,
    folder: Path,
    waves: Path | None = None,
    trace_depth: int = 3,
    stalls: Stalls | None = None,
    skip_build: bool = False,
    build: Build | None = None,
    timeout: float | None = None,
) -> Simulation:
    """Run codes, a batch per input port, through a circuit; builds and logs are kept in `folder`.

    `waves` is a file for the signals of the upper `trace_depth` levels of modules. A `build` made
    with the same options saves looking for one.
    """
    samples = _check_inputs(circuit, inputs)
    folder = folder.absolute()
    if build is None:
        kind = None if waves is None else wave_format(waves)
        options: dict[str, Any] = {"trace_depth": trace_depth, "skip_build": skip_build}
        build = build_circuit(circuit, folder, waves=kind, timeout=timeout, **options)
    log = folder / "logs" / f"simulation-{circuit.digest[:16]}.log"
    with part_folder(folder / "run") as private:
        with (private / "inputs").open("wb") as file:
            for port, codes in zip(circuit.inputs, inputs, strict=True):
                for start in range(0, samples, PACKED):
                    port.to_beats(codes[start : start + PACKED]).tofile(file)
        traced = private / f"waves{waves.suffix.lower()}" if waves is not None else None
        files = [str(private / name) for name in ("inputs", "results", "status")]
        arguments = [*files, str(traced or ""), *_settings(circuit, samples, stalls or NO_STALLS)]
        tool = Tool("the simulation", (str(build.program),))
        run_tool(tool, arguments, log=log, folder=build.folder, timeout=timeout)
        if waves is not None and traced is not None:
            _keep(traced, waves)
        return _read(circuit, private, samples, build, log)


NO_STALLS = Stalls(0, 0)


def _keep(traced: Path, waves: Path) -> None:
    from chop.system.files import whole_file

    with whole_file(waves) as part:
        traced.replace(part)


def _settings(circuit: Circuit, samples: int, stalls: Stalls) -> list[str]:
    """Return the numbers that the harness takes."""
    shares = (1 - stalls.inputs, 1 - stalls.outputs)
    beats = max(port.beats for port in (*circuit.inputs, *circuit.outputs))
    slowest = 4 * (circuit.latency + circuit.interval + beats)
    hang_after = PATIENCE + int(slowest / min(shares))
    drain = circuit.latency + circuit.interval + 16
    half_period = max(1, round(circuit.clock_period * 500))  # ps
    numbers = (samples, hang_after, drain, half_period, stalls.inputs, stalls.outputs, stalls.seed)
    return [str(number) for number in numbers]


def _check_inputs(circuit: Circuit, inputs: Sequence[Tensor]) -> int:
    """Return the number of samples; refuse codes that do not fit the ports."""
    if len(inputs) != len(circuit.inputs):
        raise ValueError(
            f"the circuit has {len(circuit.inputs)} input ports; give a batch of codes for each, "
            f"not {len(inputs)}"
        )
    for port, codes in zip(circuit.inputs, inputs, strict=True):
        _check_codes(port, codes)
    sizes = {len(codes) for codes in inputs}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"all ports need the same number of samples, at least 1, not {sizes}")
    return sizes.pop()


def _check_codes(port: Port, codes: Tensor) -> None:
    if codes.dtype != torch.int64 or tuple(codes.shape[1:]) != port.shape:
        raise ValueError(
            f"{port.name} takes int64 codes of shape {['batch', *port.shape]}, not "
            f"{codes.dtype} of shape {list(codes.shape)}"
        )
    low = -(1 << (port.width - 1)) if port.signed else 0
    high = low + (1 << port.width) - 1
    if len(codes) and not (low <= int(codes.min()) and int(codes.max()) <= high):
        raise ValueError(
            f"{port.name} takes codes from {low} to {high}, not {int(codes.min())} to "
            f"{int(codes.max())}"
        )


def _read(circuit: Circuit, private: Path, samples: int, build: Build, log: Path) -> Simulation:
    """Return what the harness has written."""
    status, cycles, sent, got = (private / "status").read_text(encoding="utf-8").splitlines()
    if status != "done":
        raise ToolError(f"{_trouble(circuit, status, sent, got, samples)} in cycle {cycles}")
    raw = np.fromfile(private / "results", "<u4")
    outputs, start = [], 0
    for port in circuit.outputs:
        size = samples * port.beats * port.words
        words = raw[start : start + size].reshape(samples, port.beats, port.words)
        parts = [port.from_beats(words[i : i + PACKED]) for i in range(0, samples, PACKED)]
        outputs.append(torch.cat(parts))
        start += size
    stamps = raw[start:].view("<u8").astype(np.int64).reshape(2, samples)
    started, finished = (torch.from_numpy(row) for row in stamps)
    return Simulation(tuple(outputs), started, finished, int(cycles), build)


def _trouble(circuit: Circuit, status: str, sent: str, got: str, samples: int) -> str:
    """Return what went wrong in a run, without the cycle."""
    taken = min(int(n) // p.beats for n, p in zip(sent.split(), circuit.inputs, strict=True))
    given = min(int(n) // p.beats for n, p in zip(got.split(), circuit.outputs, strict=True))
    counts = f"{taken:,} of {samples:,} samples were taken and {given:,} results came"
    if status == "hang":
        return f"the circuit hangs: {counts}, and no port made progress since; it was stopped"
    if status == "finish":
        return f"the circuit called $finish: {counts}; it was stopped"
    return f"the circuit gives more results than it has samples: {counts}; it was stopped"
