"""The float simulation of a network, compared with its integers layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.actions.certificate.ways import Column, Difference, Subject
from chop.actions.samples import model_outputs
from chop.passes.graph.analysis.layer_checks import LayerCheck
from chop.passes.graph.analysis.verify_integers import compare_simulation
from chop.passes.graph.describe.interpreter import input_values

__all__ = ["bounds_of", "simulation_column"]

Bounds = dict[str, Any]


def simulation_column(subject: Subject) -> tuple[Column, Bounds]:
    """Return the column of the simulation, and what interval analysis says of each layer."""
    graph, integers = subject.graph, subject.integers
    batches = (input_values(graph, batch, "vectors") for batch in subject.vectors.batches())
    compared = compare_simulation(graph, integers, batches)
    notes = []
    if not compared.whole.values:
        notes.append(f"its outputs are not compared, as {'; '.join(integers.notes)}")
    elif compared.single is not compared.whole and compared.single.mismatches:
        notes.append(
            f"float32 rounds sums of layers that are not proven, so that "
            f"{compared.single.mismatches:,} of {compared.single.values:,} outputs differ; these "
            f"layers and the outputs are compared in float64"
        )
    column = Column(
        "simulation",
        score=subject.score(model_outputs(graph.model, subject.vectors.data(), subject.batch_size)),
        mismatches=compared.mismatches,
        first=None if compared.first is None else _difference(compared.first),
        notes=tuple(notes),
    )
    return column, _bounds(subject, compared.layers)


def bounds_of(subject: Subject) -> Bounds:
    """Return what interval analysis says of each layer, without running any vector."""
    return _bounds(subject, compare_simulation(subject.graph, subject.integers, ()).layers)


def _difference(check: LayerCheck) -> Difference:
    assert check.first is not None
    first = check.first
    return Difference(check.node, first.sample, first.place, first.expected, first.got)


def _bounds(subject: Subject, layers: Mapping[str, LayerCheck]) -> Bounds:
    """Return which layers are proven: float32 is exact, as no sum reaches 2^24 steps."""
    rows = []
    for name, layer in layers.items():
        node = subject.integers.values.get(name, name)
        known = node in subject.integers.nodes
        codes = subject.integers.codes(node) if known else None
        rows.append(
            {
                "node": name,
                "op": layer.op,
                "type": layer.kind,
                "lowest": None if codes is None else codes.lowest,
                "highest": None if codes is None else codes.highest,
                "accumulator_width": layer.accumulator,
                "equality": "proven" if layer.proven else "observed",
                "values": layer.values,
                "mismatches": layer.mismatches,
            }
        )
    proven = sum(layer.proven for layer in layers.values())
    return {"proven": proven, "observed": len(rows) - proven, "layers": rows}
