"""Circuits of many small networks in one simulation: building one takes longer than running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from chop.hardware.circuit import Backend, Circuit, Port
from chop.hardware.simulation import Stalls, simulate_circuit
from chop.hardware.streaming import streaming_circuit
from chop.hardware.unrolled import unrolled_circuit
from chop.integers import IntegerGraph, QuantizeInput

from .network_ways import MAX_ADDERS, Difference, Subject, compared

STALLS = Stalls(0.2, 0.2)


@dataclass(frozen=True)
class Part:
    """A network, its circuit, and the samples that are sent to it."""

    subject: Subject
    circuit: Circuit
    inputs: tuple[Tensor, ...]


def part_of(subject: Subject, backend: Backend, number: int) -> Part:
    """Return the circuit of a network, with names of its own."""
    graph, top = _renamed(subject.integers, f"n{number}_"), f"n{number}_top"
    circuit = (
        streaming_circuit(graph, max_parallelism=subject.network.parallelism, top=top)
        if backend == "streaming"
        else unrolled_circuit(graph, top=top, max_adders=MAX_ADDERS, progress=False)
    )
    codes = {
        node.name: node.op.run(subject.x)
        for node in graph.nodes.values()
        if isinstance(node.op, QuantizeInput)
    }
    return Part(subject, circuit, tuple(codes[port.value] for port in circuit.inputs))


def _renamed(graph: IntegerGraph, prefix: str) -> IntegerGraph:
    """Return a graph whose nodes begin with a prefix, as files are called like nodes."""
    nodes = {}
    for name, node in graph.nodes.items():
        inputs = tuple(prefix + i if i in graph.nodes else i for i in node.inputs)
        source = prefix + node.source
        nodes[prefix + name] = replace(node, name=prefix + name, inputs=inputs, source=source)
    return replace(graph, nodes=nodes, outputs=[prefix + name for name in graph.outputs])


def simulated(parts: Sequence[Part], folder: Path) -> list[Difference | None]:
    """Return what the circuits, all of one backend, compute otherwise than the integers."""
    joint, names = _joined([part.circuit for part in parts])
    count = max(len(x) for part in parts for x in part.inputs)
    rows = torch.arange(count)
    inputs = [x[rows % len(x)] for part in parts for x in part.inputs]
    result = simulate_circuit(joint, inputs, folder=folder, stalls=STALLS)
    given = dict(zip(names, result.outputs, strict=True))
    found = []
    for number, part in enumerate(parts):
        size = len(part.subject.x)
        own = [given[number, port.name][:size] for port in part.circuit.outputs]
        found.append(compared(joint.backend, part.subject, own))
    return found


def _joined(circuits: Sequence[Circuit]) -> tuple[Circuit, list[tuple[int, str]]]:
    """Return a circuit with all of them side by side, and whose port each output is."""
    inputs, outputs, names = list[Port](), list[Port](), list[tuple[int, str]]()
    instances, files = [], {}
    for number, circuit in enumerate(circuits):
        files |= circuit.files
        pins = [".clk(clk)", ".rst(rst)"]
        for own, joint in ((circuit.inputs, inputs), (circuit.outputs, outputs)):
            side = "in" if joint is inputs else "out"
            for port in own:
                new = f"data_{side}_{len(joint)}"
                joint.append(replace(port, name=new))
                signals = ["", "_valid", *(["_ready"] if circuit.handshakes else [])]
                pins += [f".{port.name}{each}({new}{each})" for each in signals]
        names += [(number, port.name) for port in circuit.outputs]
        instances.append(f"  {circuit.top} part_{number} ({', '.join(pins)});")
    text = f"module top ({_header(inputs, outputs, circuits[0])});\n" + "\n".join(instances)
    joint_circuit = replace(
        circuits[0],
        top="top",
        files={"top.sv": text + "\nendmodule\n", **files},
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        latency=max(circuit.latency for circuit in circuits),
        interval=max(circuit.interval for circuit in circuits),
    )
    return joint_circuit, names


def _header(inputs: Sequence[Port], outputs: Sequence[Port], like: Circuit) -> str:
    signals = ["input logic clk", "input logic rst"]
    for ports, way, back in ((inputs, "input", "output"), (outputs, "output", "input")):
        for port in ports:
            signals.append(f"{way} logic [{port.bits - 1}:0] {port.name}")
            signals.append(f"{way} logic {port.name}_valid")
            signals += [f"{back} logic {port.name}_ready"] if like.handshakes else []
    return ", ".join(signals)
