"""Simulation of circuits with Verilator, and comparison with the integer graph."""

from typing import TYPE_CHECKING

from chop import lazy

if TYPE_CHECKING:
    from chop.hardware.simulation.build import Build, build_circuit, lint_circuit
    from chop.hardware.simulation.check import CircuitCheck, Mismatch, check_circuit, matching_graph
    from chop.hardware.simulation.run import Simulation, Stalls, simulate_circuit

__all__ = [
    "Build",
    "CircuitCheck",
    "Mismatch",
    "Simulation",
    "Stalls",
    "build_circuit",
    "check_circuit",
    "lint_circuit",
    "matching_graph",
    "simulate_circuit",
]

__getattr__ = lazy.importer(__name__, __file__)
