"""What the layers of an unrolled circuit give for one sample, by its top with more outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.hardware.circuit import Circuit, Port
from chop.hardware.simulation import simulate_circuit
from chop.hardware.unrolled.symbols import kinds
from chop.integers import Codes, IntegerGraph

__all__ = ["layer_codes"]

WIRE = re.compile(r"^ *wire \[(\d+):0\] (\w+);", re.MULTILINE)
VALID = re.compile(r"assign \w+_valid = ([^;]+);")


def layer_codes(
    graph: IntegerGraph, circuit: Circuit, inputs: Sequence[Tensor], folder: Path, **options: Any
) -> dict[str, Tensor]:
    """Return the codes between the layers for one sample, given as codes per input port.

    The values are those that the top has wires for, in the order of the graph; a circuit with
    another kind of top has none.
    """
    probed = _with_probes(graph, circuit)
    if probed is None:
        return {}
    # one sample all the time, so that all stages of the pipeline hold it when it is done
    times = circuit.latency + 2
    held = [x.expand(times, *x.shape[1:]) for x in inputs]
    found = simulate_circuit(probed, held, folder=folder, **options)
    raw = {
        port.value: bits[0].tolist()
        for port, bits in zip(probed.outputs, found.outputs, strict=True)
    }
    return {node: _unpacked(raw[node], graph.codes(node)) for node in graph.nodes if node in raw}


def _with_probes(graph: IntegerGraph, circuit: Circuit) -> Circuit | None:
    """Return the circuit with the wires between its layers as its outputs."""
    head = f"module {circuit.top} ("
    name = next((name for name, text in circuit.files.items() if head in text), None)
    if name is None or circuit.backend != "unrolled" or circuit.language != "verilog":
        return None
    text = circuit.files[name]
    wires = {wire: int(last) + 1 for last, wire in WIRE.findall(text)}
    probes = {
        f"probe_{number}": wire
        for number, (wire, bits) in enumerate(wires.items())
        if wire in graph.nodes and bits == sum(width for _, width in kinds(graph.codes(wire)))
    }
    valid = VALID.search(text)
    if not probes or valid is None:
        return None
    source = _with_ports(text, head, {port: (w, wires[w]) for port, w in probes.items()}, valid[1])
    ports = (Port(port, w, (wires[w],), 1, False, wires[w]) for port, w in probes.items())
    return replace(circuit, files={**circuit.files, name: source}, outputs=tuple(ports))


def _with_ports(text: str, head: str, probes: Mapping[str, tuple[str, int]], valid: str) -> str:
    """Return the source of a top with more output ports."""
    before, _, rest = text.partition(head)
    ports, _, body = rest.partition(");")
    more = "".join(
        f",\n    output wire [{bits - 1}:0] {port},\n    output wire {port}_valid"
        for port, (_, bits) in probes.items()
    )
    assigns = "".join(
        f"    assign {port} = {wire};\n    assign {port}_valid = {valid};\n"
        for port, (wire, _) in probes.items()
    )
    body, _, after = body.rpartition("endmodule")
    return f"{before}{head}{ports.rstrip()}{more}\n);{body}{assigns}endmodule{after}"


def _unpacked(bits: list[int], codes: Codes) -> Tensor:
    """Return the codes in a vector of bits, the first in the lowest; constants take none."""
    values, start = [], 0
    lows = codes.bounds()[0].flatten().tolist()
    for (signed, width), low in zip(kinds(codes), lows, strict=True):
        number = sum(bit << place for place, bit in enumerate(bits[start : start + width]))
        if signed and width and bits[start + width - 1]:
            number -= 1 << width
        values.append(number if width else low)
        start += width
    return torch.tensor(values, dtype=torch.int64).reshape(codes.shape)
