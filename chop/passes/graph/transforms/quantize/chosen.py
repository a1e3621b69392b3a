"""The table of what calibration chose."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from chop.log import show_logs_unless_configured
from chop.numerics import NumberFormat
from chop.passes.graph.transforms.quantize.observed import Observed

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chosen:
    """One line of the table: the format that calibration chose for an operand."""

    known: Observed
    fmt: NumberFormat

    def row(self) -> dict[str, Any]:
        """Return the line with its headings."""
        histogram, fmt = self.known.histogram(), self.fmt
        return {
            "Node": self.known.name,
            "Operand": self.known.operand,
            "Min": float(histogram.low.min()),
            "Max": float(histogram.high.max()),
            "Method": self._method(),
            "Width": fmt.bits,
            "Signed": fmt.signed,  # type: ignore[attr-defined]
            **fmt.calibrated_numbers(),
            "From": fmt.range[0],
            "To": fmt.range[1],
            "Clipped %": 100 * self.clipped(),
        }

    def _method(self) -> str:
        by_error = not self.known.is_activation or self.known.method == "output"
        return "mse" if "scale" in self.fmt.layer_tensors and by_error else self.known.method

    def clipped(self) -> float:
        """Return the share of the values that are outside the range of the format."""
        values, weights = self.known.histogram().points()
        (low, high), half = self.fmt.range, self.fmt.smallest / 2
        outside = weights[(values < low - half) | (values > high + half)].sum()
        return float(outside / weights.sum().clamp(min=1))


def shown(rows: Sequence[Chosen]) -> list[dict[str, Any]]:
    """Log the table of what was chosen, and return its lines."""
    lines = [row.row() for row in rows]
    show_logs_unless_configured()
    logger.info("Calibrated numbers:")
    texts = [{key: _short(value) for key, value in line.items()} for line in lines]
    logger.info("\n%s", tabulate(texts, headers="keys", tablefmt="orgtbl", floatfmt=".4g"))
    return lines


def _short(value: Any) -> Any:
    """Return a float with four digits; a column that also has texts is not formatted as numbers."""
    return f"{value:.4g}" if isinstance(value, float) else value
