"""The circuit of a project, run by Verilator and compared with the integers."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from chop.actions.certificate.probe import first_layer
from chop.actions.certificate.ways import Column, Difference, Subject
from chop.actions.circuit_test import STALLED, circuit_values
from chop.hardware.circuit import MANIFEST, Circuit
from chop.hardware.simulation import CircuitCheck, Stalls, check_circuit, matching_graph
from chop.system.files import read_json

__all__ = ["has_circuit", "verilog_column"]

AGAIN = "emit it again with ch emit"


def has_circuit(folder: Path) -> bool:
    """Return whether a project has a circuit."""
    return (folder / "hardware" / "rtl" / MANIFEST).is_file()


def verilog_column(subject: Subject) -> Column:
    """Return the column of the circuit."""
    hardware = subject.folder / "hardware"
    circuit, name = Circuit.read(hardware), "hardware/rtl"
    faults = (*_stale(subject, circuit), *_edited(hardware / "rtl", circuit))
    network = circuit.network or None
    try:
        graph = matching_graph(subject.integers, circuit)
    except ValueError:
        faults = (f"has other inputs or outputs than the network; {AGAIN}", *faults)
        return Column("verilog", name, faults=faults, network=network)
    check = _simulated(subject, circuit)
    first = None
    if check.first is not None:
        wrong, port = check.first, check.first.output
        value = next(each.value for each in circuit.outputs if each.name == port)
        first = Difference(value, wrong.sample, wrong.place, wrong.expected, wrong.got)
        first = first_layer(subject, graph, circuit, first)
    return Column(
        "verilog",
        name,
        score=subject.score(circuit_values(subject.integers, graph, check.simulation.outputs[0])),
        mismatches=check.mismatches,
        wrong_vectors=check.wrong_samples,
        first=first,
        faults=faults,
        notes=circuit.notes,
        network=network,
    )


def _simulated(subject: Subject, circuit: Circuit) -> CircuitCheck:
    """Compare all vectors; if they agree, a circuit with handshakes gets some again, with stalls.

    The vectors contain the boundary vectors.
    """
    inputs = subject.vectors.inputs
    more: dict[str, Any] = {"boundaries": False, "timeout": subject.timeout}
    folder = subject.builds
    check = check_circuit(subject.integers, circuit, inputs, folder=folder, **more)
    if check.mismatches or not circuit.handshakes:
        return check
    few = {name: x[:STALLED] for name, x in inputs.items()}
    stalled = check_circuit(subject.integers, circuit, few, folder=folder, stalls=Stalls(), **more)
    if not stalled.mismatches:
        return check
    return replace(
        check,
        mismatches=stalled.mismatches,
        wrong_samples=stalled.wrong_samples,
        first=stalled.first,
    )


def _stale(subject: Subject, circuit: Circuit) -> tuple[str, ...]:
    if not circuit.network or circuit.network == subject.digest:
        return ()
    sums = f"checksum {circuit.network[:12]}… instead of {subject.digest[:12]}…"
    return (f"was emitted from another network ({sums}); {AGAIN}",)


def _edited(rtl: Path, circuit: Circuit) -> tuple[str, ...]:
    """Return a fault if files are not what `ch emit` wrote, with the layers that are in them."""
    sums = read_json(rtl / MANIFEST, advice=AGAIN)["files"]
    edited = [
        name
        for name, text in circuit.files.items()
        if hashlib.sha256(text.encode()).hexdigest() != sums[name]
    ]
    if not edited:
        return ()
    stems = {Path(name).stem for name in edited}
    layers = [node for node, module in circuit.layers.items() if module in stems]
    of = f" with the layers {', '.join(layers)}" if layers else ""
    return (f"is not what ch emit wrote: {', '.join(edited)}{of} was edited; {AGAIN}",)
