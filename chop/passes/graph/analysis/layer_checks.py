"""What is compared of a layer, and how far values may differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from chop.integers import (
    ChannelAffine,
    IntegerGraph,
    IntegerNode,
)
from chop.ir.graph.mase_metadata import mase

OUTPUT_TOLERANCE = 2.0**-16  # of an output that float32 rounds, relative to the largest
TIE = 2.0**-20  # of a step
VALUE_TIE = 2.0**-22  # of a value: float32 biases and scales leave as much of it
NEAR = 2.0**-18  # of a code: how far a value of measured steps may be from it in float32


@dataclass(frozen=True)
class FirstMismatch:
    """Where a layer differed first, in steps of the code that was expected."""

    sample: int
    place: tuple[int, ...]
    expected: float
    got: float


@dataclass
class LayerCheck:
    """What was compared for one node, and how often it differed."""

    node: str
    op: str
    kind: str
    proven: bool
    counted: bool = True  # whether its values lie on a grid, so that a difference is a mismatch
    returned: bool = False  # without being rounded, so that a tolerance says what a mismatch is
    accumulator: int | None = None
    samples: int = 0
    values: int = 0
    mismatches: int = 0
    largest: float = 0.0
    first: FirstMismatch | None = None
    table: bool = field(default=False, repr=False)
    rounding: IntegerNode | None = field(default=None, repr=False)  # of an operand

    @classmethod
    def of(
        cls, node: fx.Node, integers: IntegerGraph, proven: Mapping[str, bool]
    ) -> LayerCheck | None:
        """Return the check of a node, or None for one that no integer node stands for."""
        made = [each for each in integers.nodes.values() if each.source == node.name]
        name = integers.values.get(node.name)
        roundings = integers.roundings.get(node.name, [])
        computes = node.op not in ("placeholder", "get_attr", "output")
        if not computes or node.name in integers.left_out or not (name or roundings):
            return None
        names = [name] if name else [each for each, _ in roundings]
        kinds = " ".join(dict.fromkeys(integers.codes(each).kind for each in names))
        widths = [each.codes.width for each in made if each.accumulates]
        return cls(
            node.name,
            mase(node).common.mase_op,
            kinds,
            all(proven[each] for each in (*names, *(each.name for each in made))),
            counted=not name or on_grid(name, integers),
            returned=name in integers.outputs,
            accumulator=max(widths, default=None),
            table=any(each.op.tabled for each in made),
        )

    @classmethod
    def of_rounding(
        cls, rounding: IntegerNode, integers: IntegerGraph, proven: Mapping[str, bool]
    ) -> LayerCheck:
        """Return the check of a requantisation."""
        kind = integers.codes(rounding.name).kind
        return cls(rounding.name, "requantize", kind, proven[rounding.name], rounding=rounding)

    def count(self, wrong: Tensor, difference: Tensor, got: Tensor, expected: Tensor) -> None:
        """Add a batch: where codes differ, by how much the values do, and what they are."""
        if self.first is None and bool(wrong.any()):
            at = tuple(wrong.nonzero()[0].tolist())
            codes = float(expected[at]), float(got[at])
            self.first = FirstMismatch(self.samples + at[0], at[1:], *codes)
        self.samples += len(wrong)
        self.values += wrong.numel()
        self.mismatches += int(wrong.sum())
        self.largest = max(self.largest, float(difference.max()) if difference.numel() else 0.0)

    @property
    def label(self) -> str:
        """What it is called in a sentence."""
        return f"node {self.node!r}" if self.op else f"the output of the {self.node}"

    @property
    def row(self) -> dict[str, Any]:
        return {
            "Node": self.node,
            "Op": self.op,
            "Type": self.kind,
            "Accumulator": self.accumulator or "",
            "Equality": "proven" if self.proven else "observed",
            "Values": self.values or "not compared",
            "Mismatches": self._mismatches,
            "Largest difference": f"{self.largest:.3g}" if self.values else "",
        }

    @property
    def _mismatches(self) -> int | str:
        if not self.values:
            return "not compared"
        return self.mismatches if self.counted or self.returned else "where it is rounded"


def on_grid(name: str, integers: IntegerGraph) -> bool:
    """Return whether the float simulation has the same grid of values as an integer node.

    A batch norm that is not folded and sums with float scales have their own; the next rounding
    shows whether they agree.
    """
    node = integers.nodes[name]
    if node.op.rounds or node.op.on_grid:
        return True
    if isinstance(node.op, ChannelAffine):
        return False
    scale, alone = node.codes.scale, len(node.inputs) == 1
    moved = alone and integers.codes(node.inputs[0]).scale.same(scale)
    return (scale.power_of_two or moved) and all(on_grid(each, integers) for each in node.inputs)


def tolerance(values: Tensor) -> float:
    """Return how far values may differ that have no grid in common."""
    return OUTPUT_TOLERANCE * max(float(values.abs().max()) if values.numel() else 0.0, 2.0**-100)


def far_from_codes(steps: Tensor, codes: Tensor) -> Tensor:
    """Return which values, in measured steps, are not those of codes."""
    return (steps - codes).abs() > NEAR * codes.abs().clamp(min=1)


def tie_reach(steps: Tensor) -> Tensor:
    """Return how near to a tie values may lie, in steps, so that both codes are right."""
    return torch.clamp(VALUE_TIE * steps.abs(), min=TIE)
