"""Compare a circuit with the integer graph, on data and on boundary vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.hardware.circuit import Circuit, Port
from chop.hardware.simulation.run import Simulation, simulate_circuit
from chop.integers import IntegerGraph, QuantizeInput
from chop.integers.vectors import boundary_inputs, input_words

__all__ = ["CircuitCheck", "Mismatch", "check_circuit"]

BATCH = 1024  # samples that the integer graph computes at once


@dataclass(frozen=True)
class Mismatch:
    """A code of a result that is not what the integer graph says."""

    sample: int  # boundary vectors come after the data
    output: str  # the port
    place: tuple[int, ...]  # in the result
    expected: int
    got: int

    def __str__(self) -> str:
        where = f"{self.output}{list(self.place) if self.place else ''}"
        return f"sample {self.sample}: {where} is {self.got} instead of {self.expected}"


@dataclass(frozen=True, eq=False)
class CircuitCheck:
    """How a circuit compares with the integer graph.

    `mismatches` counts codes, `wrong_samples` the samples that have any. `accuracy` is that of the
    circuit on the data, if there are labels.
    """

    samples: int
    boundary_vectors: int
    mismatches: int
    wrong_samples: int
    first: Mismatch | None
    accuracy: float | None
    simulation: Simulation


def check_circuit(
    graph: IntegerGraph,
    circuit: Circuit,
    inputs: Sequence[Tensor] | Mapping[str, Tensor],
    *,
    folder: Path,
    labels: Tensor | None = None,
    boundaries: bool = True,
    **options: Any,
) -> CircuitCheck:
    """Run floats, a batch per input of the graph, through the graph and the circuit.

    Boundary vectors follow unless `boundaries` is False; `options` are those of
    `simulate_circuit`.
    """
    graph = matching_graph(graph, circuit)
    known = inputs if isinstance(inputs, Mapping) else dict(zip(graph.inputs, inputs, strict=True))
    count = len(next(iter(known.values())))
    words = input_words(graph)
    extra = dict(zip(words, boundary_inputs([*words.values()]), strict=True)) if boundaries else {}
    batches = [*_batches(known), *_batches(extra)]
    codes = [_input_codes(graph, batch) for batch in batches]
    sent = [torch.cat([batch[port.value] for batch in codes]) for port in circuit.inputs]
    simulation = simulate_circuit(circuit, sent, folder=folder, **options)
    expected = _expected(graph, batches)
    wrong = [ours != theirs for ours, theirs in zip(expected, simulation.outputs, strict=True)]
    by_sample = torch.stack([x.reshape(len(x), -1).any(1) for x in wrong]).any(0)
    return CircuitCheck(
        samples=count,
        boundary_vectors=len(by_sample) - count,
        mismatches=int(sum(int(x.sum()) for x in wrong)),
        wrong_samples=int(by_sample.sum()),
        first=_first(circuit, wrong, expected, simulation.outputs),
        accuracy=None if labels is None else _accuracy(graph, simulation.outputs[0], labels),
        simulation=simulation,
    )


def matching_graph(graph: IntegerGraph, circuit: Circuit) -> IntegerGraph:
    """Return the graph, with an argmax at its end if the circuit has one; refuse another one."""
    values = [port.value for port in circuit.outputs]
    if values != graph.outputs and len(graph.outputs) == 1:
        graph = graph.with_argmax()
    ports = (*circuit.inputs, *circuit.outputs)
    if values != graph.outputs or not all(_fits(graph, port) for port in ports):
        raise ValueError("the circuit was emitted from another network; run ch emit again")
    return graph


def _fits(graph: IntegerGraph, port: Port) -> bool:
    return port.value in graph.nodes and graph.codes(port.value).shape == port.shape


def _batches(inputs: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    count = len(next(iter(inputs.values()), ()))
    starts = range(0, count, BATCH)
    return [{name: x[i : i + BATCH] for name, x in inputs.items()} for i in starts]


def _input_codes(graph: IntegerGraph, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    nodes = [node for node in graph.nodes.values() if isinstance(node.op, QuantizeInput)]
    return {node.name: node.op.run(batch[node.inputs[0]]) for node in nodes}


def _expected(graph: IntegerGraph, batches: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    """Return the codes of each output."""
    results = [graph.run(**batch) for batch in batches]
    rows = [x if isinstance(x, tuple) else (x,) for x in results]
    return [torch.cat(parts).cpu() for parts in zip(*rows, strict=True)]


def _first(
    circuit: Circuit,
    wrong: Sequence[Tensor],
    expected: Sequence[Tensor],
    got: Sequence[Tensor],
) -> Mismatch | None:
    """Return the first mismatch of the first sample that has one."""
    found = [
        (int(places[0, 0]), number) for number, x in enumerate(wrong) if len(places := x.nonzero())
    ]
    if not found:
        return None
    sample, number = min(found)
    place = tuple(wrong[number][sample].nonzero()[0].tolist())
    at = (sample, *place)
    port = circuit.outputs[number].name
    return Mismatch(sample, port, place, int(expected[number][at]), int(got[number][at]))


def _accuracy(graph: IntegerGraph, codes: Tensor, labels: Tensor) -> float:
    """Return the share of samples that the circuit classifies as labelled."""
    scores = codes[: len(labels)]
    last = graph.codes(graph.outputs[0])
    classes = scores if not last.shape else last.values(scores).argmax(-1)
    return float((classes == labels.to(classes.device)).double().mean())
