"""The first layer of a circuit that gives other codes than the integer graph."""

from __future__ import annotations

from chop.actions.certificate.ways import Difference, Subject
from chop.hardware.circuit import Circuit
from chop.integers import IntegerGraph

__all__ = ["first_layer"]


def first_layer(
    subject: Subject, graph: IntegerGraph, circuit: Circuit, output: Difference
) -> Difference:
    """Return the first difference between layers in the vector of an output that differs.

    If the circuit does not show what is between its layers, return the difference of the output.
    """
    from chop.hardware.unrolled.probe import layer_codes

    if circuit.backend != "unrolled":
        return output
    own = graph.trace(**subject.vectors.only(output.vector))
    inputs = [own[port.value] for port in circuit.inputs]
    found = layer_codes(graph, circuit, inputs, subject.builds, timeout=subject.timeout)
    for node, codes in found.items():
        wrong = (codes != own[node][0]).nonzero()
        if len(wrong):
            place = tuple(wrong[0].tolist())
            expected, got = (float(x[place]) for x in (own[node][0], codes))
            module = _module(graph, circuit, node)
            return Difference(node, output.vector, place, expected, got, module)
    return output


def _module(graph: IntegerGraph, circuit: Circuit, node: str) -> str | None:
    """Return the module that computes a value, which is that of what the value is made from."""
    made_from = graph.nodes[graph.nodes[node].inputs[0]].source
    return circuit.layers.get(made_from)
