"""Costs as a table, a JSON file, and a bar chart."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tabulate import tabulate

from chop.charts import Bars, bar_page
from chop.system.files import write_whole
from chop.system.log import show_logs_unless_configured

logger = logging.getLogger(__name__)

COLUMNS = {
    "parameters": "Parameters",
    "macs": "MACs",
    "flops": "FLOPs",
    "backward_flops": "FLOPs back",
    "bit_ops": "BitOPs",
    "weight_bits": "Weights [B]",
    "activation_bits": "Activations [B]",
    "arithmetic_intensity": "FLOPs/B",
}
BARS = {
    "macs": "MACs",
    "bit_ops": "BitOPs",
    "weight_bits": "weights, bytes",
    "activation_bits": "activations, bytes",
}
MAX_BARS = 24


def table(info: Mapping[str, Any]) -> str:
    """Format the nodes with nonzero cost and their sum as a table."""
    costly = {n: row for n, row in info["nodes"].items() if row["flops"] or row["parameters"]}
    rows = [[name, row["op"], *_cells(row)] for name, row in costly.items()]
    rows.append(["total", "", *_cells(info["total"])])
    return tabulate(rows, headers=["Node", "OP", *COLUMNS.values()], tablefmt="orgtbl")


def _cells(row: Mapping[str, Any]) -> list[Any]:
    return [_in_bytes(key, row[key]) for key in COLUMNS]


def _in_bytes(key: str, value: float) -> Any:
    if key == "arithmetic_intensity":
        return round(value, 3)
    return value / 8 if key.endswith("_bits") else value


def summary(info: Mapping[str, Any]) -> str:
    """Return the line that accompanies the table: the batch and the peak activation memory."""
    peak, where = info["total"]["peak_activation_bits"] / 8, info["total"]["peak_node"]
    whom = "per sample" if info["per_sample"] else f"for a batch of {info['batch_size']}"
    return f"{whom}; at most {peak:,.0f} B of activations at a time (node {where!r})"


def picture_of(info: Mapping[str, Any]) -> str:
    """Draw the most expensive nodes as bars in SVG."""
    panels = []
    for key, title in BARS.items():
        values = {name: float(_in_bytes(key, row[key])) for name, row in info["nodes"].items()}
        most = sorted(values, key=lambda name: -values[name])[:MAX_BARS]
        panels.append(Bars(title, {n: v for n, v in values.items() if n in most and v > 0}))
    return bar_page(panels)


def report(
    info: Mapping[str, Any], silent: bool, file_name: str | Path | None, picture: str | Path | None
) -> None:
    if not silent:
        show_logs_unless_configured()
        logger.info("Cost of the graph, %s:", summary(info))
        logger.info("\n%s", table(info))
    if file_name is not None:
        write_whole(file_name, json.dumps(info, indent=2) + "\n")
    if picture is not None:
        write_whole(picture, picture_of(info))
