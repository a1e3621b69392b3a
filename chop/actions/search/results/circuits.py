"""After the search: emit, simulate and synthesise the circuits of the chosen designs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from chop.actions.search.metrics.samples import any_split, first_of, on_device
from chop.actions.search.results.files import Results, plain
from chop.actions.search.results.networks import network_of
from chop.actions.search.run.worker import Worker
from chop.actions.search.spec.settings import Emit, Synthesize
from chop.actions.search.store.location import StudyLocation
from chop.dataset.nested import joined
from chop.hardware.circuit import Circuit
from chop.hardware.emit import EmitOptions, emit_circuit
from chop.hardware.estimate import estimate
from chop.hardware.simulation.check import check_circuit
from chop.hardware.synthesis import Synthesis, synthesize_circuit
from chop.integers import IntegerGraph
from chop.passes.graph.transforms.integers import integer_graph
from chop.training.tasks import CLASSIFICATION, task_named

logger = logging.getLogger(__name__)

Facts = dict[str, Any]
COUNTS = ("packed_luts", "luts", "ffs", "carries", "dsps", "brams", "depth")


def build_circuits(worker: Worker, results: Results, location: StudyLocation) -> dict[str, Facts]:
    """Build what `[search.emit]` and `[search.synthesize]` ask for; return the facts by trial.

    A design without a circuit gets the reason. Simulations and syntheses are kept by content, so a
    resumed search does not run them again.
    """
    settings = worker.spec.settings
    emitted = results.numbers(settings.emit.designs) if settings.emit else []
    mapped = results.numbers(settings.synthesize.designs) if settings.synthesize else []
    circuits: dict[str, Facts] = {}
    for number in dict.fromkeys([*emitted, *mapped]):
        facts: Facts = {}
        try:
            design = _CircuitDesign(worker, results, location, number)
            if settings.emit is not None and number in emitted:
                facts |= design.emit(settings.emit)
            if settings.synthesize is not None and number in mapped:
                made = design.synthesize(settings.synthesize)
                facts = made | facts  # the clock is that of the circuit that is written
        except (ValueError, NotImplementedError, OSError) as error:
            logger.warning("Trial %d has no circuit: %s", number, error)
            facts["error"] = str(error)
        circuits[str(number)] = plain(facts)
    logger.info("Circuits:\n%s", circuits_table(circuits, results))
    return circuits


class _CircuitDesign:
    """A design, and its circuits by clock period."""

    def __init__(
        self, worker: Worker, results: Results, location: StudyLocation, number: int
    ) -> None:
        self.worker, self.results, self.location = worker, results, location
        self.number, self.made = number, dict[float, Circuit]()
        graph = network_of(worker, results, location, number)
        self.integers: IntegerGraph = integer_graph(graph)

    def circuit(self, period: float) -> Circuit:
        if period not in self.made:
            logger.info("Emitting the circuit of trial %d...", self.number)
            options = EmitOptions(clock=period)
            shown = self.location.progress
            self.made[period] = emit_circuit(self.integers, options, progress=shown)
        return self.made[period]

    @property
    def folder(self) -> Path:
        """The folder of its circuit: that of the project for the best design."""
        is_best = self.results.chosen is not None and self.results.chosen.number == self.number
        if is_best and self.location.hardware is not None:
            return self.location.hardware
        return self.location.circuits / f"trial_{self.number}"

    def described(self, circuit: Circuit) -> Facts:
        period = circuit.clock_period
        expected = estimate(self.integers, clock_period=period)
        return {
            "clock_period": period,
            "latency_cycles": circuit.latency,
            "latency_ns": circuit.latency * period,
            "estimate": expected.metrics,
        }

    def emit(self, how: Emit) -> Facts:
        """Write the sources, and simulate them on samples of the validation split."""
        circuit = self.circuit(how.clock_period)
        self.folder.mkdir(parents=True, exist_ok=True)
        rtl = circuit.write(self.folder)
        logger.info("Wrote the circuit of trial %d to %s", self.number, rtl)
        found = {**self.described(circuit), "sources": self._relative(rtl)}
        top = next(name for name in circuit.files if Path(name).stem == circuit.top)
        found["top"] = self._relative(rtl / top)
        return found | ({"simulation": self._simulated(circuit, how)} if how.simulate else {})

    def _relative(self, path: Path) -> str:
        """Return a path as seen from the page of the search."""
        return Path(os.path.relpath(path, self.location.folder)).as_posix()

    def _simulated(self, circuit: Circuit, how: Emit) -> Facts:
        logger.info("Simulating the circuit of trial %d...", self.number)
        context = self.worker.spec.context
        split = first_of(any_split(context, "search.emit"), how.num_samples)
        batches = on_device(context, split)
        x, labels = joined([x for x, _ in batches]), torch.cat([y for _, y in batches]).cpu()
        inputs = {name: tensor.cpu() for name, tensor in _named(self.integers, x).items()}
        classes = task_named(self.worker.spec.parent.task) is CLASSIFICATION
        checked = check_circuit(
            self.integers,
            circuit,
            inputs,
            folder=self.folder / "sim",
            labels=labels if classes else None,
        )
        if checked.first is not None:
            logger.warning("Trial %d: the circuit differs: %s", self.number, checked.first)
        return {
            "samples": checked.samples,
            "boundary_vectors": checked.boundary_vectors,
            "mismatches": checked.mismatches,
            "accuracy": checked.accuracy,
            "latency_cycles": checked.simulation.latency,
            "interval": checked.simulation.interval,
        }

    def synthesize(self, how: Synthesize) -> Facts:
        """Synthesise the circuit, and compare it with the estimate."""
        circuit = self.circuit(how.clock_period)
        logger.info("Synthesising the circuit of trial %d for %s...", self.number, how.target)
        folder = self.location.circuits / "synth"
        options = {"target": how.target, "timeout": how.timeout}
        made = synthesize_circuit(circuit, folder=folder, **options)  # type: ignore[arg-type]
        described = self.described(circuit)
        return {**described, "synthesis": {**described_synthesis(made), **described}}


def _named(graph: IntegerGraph, x: Any) -> Mapping[str, Any]:
    """Return the inputs of a network by name."""
    if isinstance(x, Mapping):
        return x
    given = x if isinstance(x, list | tuple) else [x]
    return dict(zip(graph.inputs, given, strict=True))


def described_synthesis(made: Synthesis) -> Facts:
    """Return the counts of a synthesis, in all and by layer."""
    whole = asdict(made)
    layers = {
        **{name: {key: row[key] for key in COUNTS} for name, row in whole["layers"].items()},
        "other": {key: whole["other"][key] for key in COUNTS},
    }
    named = {layer: row for layer, row in layers.items() if any(row.values())}
    facts = {key: whole[key] for key in (*COUNTS, "target", "tool", "seconds")}
    return {**facts, "layers": named}


def circuits_table(circuits: Mapping[str, Facts], results: Results) -> str:
    """Return a table of all circuits: estimated and synthesised costs, and the verdict."""
    rows = []
    for number, facts in circuits.items():
        outcome = results.outcomes[int(number)]
        made, simulated = facts.get("synthesis", {}), facts.get("simulation", {})
        metrics = {**outcome.software, **outcome.hardware}
        rows.append(
            {
                "trial": number,
                **{o.name: metrics.get(o.name) for o in results.objectives.members},
                "estimate": made.get("estimate", facts.get("estimate", {})).get("lut"),
                "LUT": made.get("packed_luts"),
                "FF": made.get("ffs"),
                "depth": made.get("depth"),
                "clock": facts.get("clock_period"),
                "cycles": facts.get("latency_cycles"),
                **_other_clock(facts),
                "mismatches": simulated.get("mismatches"),
            }
        )
    names = dict.fromkeys(name for row in rows for name in row)
    shown = [name for name in names if any(row.get(name) is not None for row in rows)]
    table = [[row.get(name) for name in shown] for row in rows]
    return tabulate(table, headers=shown, floatfmt=".5g", intfmt=",")


def _other_clock(facts: Facts) -> Facts:
    """Return the clock of the synthesis if it is not the one of the emitted circuit."""
    made = facts.get("synthesis", {})
    if made.get("clock_period") in (None, facts.get("clock_period")):
        return {}
    return {
        "clock of synthesis": made["clock_period"],
        "cycles of synthesis": made["latency_cycles"],
    }
