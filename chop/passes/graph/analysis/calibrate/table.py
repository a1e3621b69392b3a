"""The table and the picture of a calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph
from chop.numerics.integer import Integer
from chop.numerics.thresholds import with_zeros
from chop.passes.graph.transforms.quantize.chosen import Chosen
from chop.passes.graph.transforms.quantize.fractions import fraction
from chop.passes.graph.transforms.quantize.marks import OPERANDS
from chop.passes.graph.transforms.quantize.observed import observed

Rows = Sequence[Mapping[str, Any]]


def rows_of(nodes: Sequence[fx.Node], widths: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the operands of nodes as fixed-point numbers of these widths.

    A layer that is called several times comes once.
    """
    calls: dict[Any, list[fx.Node]] = {}
    for node in nodes:
        calls.setdefault(node.target if node.op == "call_module" else node, []).append(node)
    for same in calls.values():
        for operand in OPERANDS[:-1]:
            known = observed(same, operand, "integer")
            if not (known.histograms or known.tensors):
                continue
            histogram = known.histogram()
            positive = known.is_activation and histogram.is_non_negative
            for width in widths:
                fmt = Integer(width, 0, signed=not (positive or known.drops_sign))
                best = Integer(width, fraction(known, histogram, fmt), signed=fmt.signed)
                yield Chosen(known, best).row()


def drawn(graph: MaseGraph, rows: Rows) -> str:
    """Return the picture of a table: each histogram, with what the chosen range clips."""
    from chop.charts import HistogramPanel, histogram_page

    nodes = {node.name: node for node in graph.nodes}
    panels = []
    for row in rows:
        first = nodes[row["Node"]]
        same = [n for n in graph.nodes if n.op == "call_module" and n.target == first.target]
        histogram = observed(same or [first], row["Operand"], "integer").histogram()
        limit = float(histogram.limits[0]) or 1.0
        title = f"{first.name} {row['Operand']}, {row['Width']} bits"
        inside = (row["From"], row["To"])
        counts = with_zeros(histogram).tolist()
        panels.append(HistogramPanel(title, counts, (-limit, limit), inside))
    return histogram_page(panels)
