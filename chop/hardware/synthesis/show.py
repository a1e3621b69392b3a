"""The result of a synthesis as a table, a picture and files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tabulate import tabulate

from chop.charts import Bars, bar_page
from chop.hardware.circuit import Circuit
from chop.hardware.synthesis.resources import Resources, Synthesis
from chop.hardware.synthesis.vendors import VendorReport
from chop.system.files import write_whole

__all__ = ["clock_warning", "comparison_table", "layer_picture", "layer_table", "write_synthesis"]

OTHER, TOTAL = "(between layers)", "total"
CLOCK = "Clock (MHz)"
ROUNDING = 0.1  # of 1,000: a clock rate has two decimals
# rows of a comparison, and the attributes that have the same name in both reports
ROWS = {
    "LUT, packed": None,  # vendors count no others
    "LUT, raw": None,
    "FF": "ffs",
    "Carry": "carries",
    "DSP": "dsps",
    "BRAM": "brams",
    "Depth": "depth",
    CLOCK: None,
}


def layer_table(synthesis: Synthesis, style: str = "simple") -> str:
    """Return a table with one row per layer and their total."""
    rows = {**synthesis.layers, OTHER: synthesis.other, TOTAL: synthesis}
    whole = synthesis.packed_luts or 1
    table = [
        {
            "Layer": name,
            "LUT": f"{row.luts:,}",
            "Packed": f"{row.packed_luts:,}",
            "Share": f"{row.packed_luts / whole:.1%}",
            "FF": f"{row.ffs:,}",
            "Carry": f"{row.carries:,}",
            "DSP": f"{row.dsps:,}",
            "BRAM": f"{row.brams:g}",
            "Depth": row.depth,
        }
        for name, row in rows.items()
        if name != OTHER or _occupies(row)
    ]
    right = ("left", *["right"] * 8)
    return tabulate(table, headers="keys", tablefmt=style, disable_numparse=True, colalign=right)


def _occupies(row: Resources) -> bool:
    return any((row.luts, row.ffs, row.carries, row.dsps, row.brams))


def clock_warning(synthesis: Synthesis, circuit: Circuit) -> str | None:
    """Return a sentence if the placed circuit is too slow for its clock period, else None."""
    placed, period = synthesis.placement, circuit.clock_period
    if placed is None or placed.clock_mhz * period >= 1e3 - ROUNDING:
        return None
    reached = f"{placed.clock_mhz:.4g} MHz ({1e3 / placed.clock_mhz:.3g} ns)"
    return (
        f"the placed circuit reaches {reached} on {placed.device}, "
        f"which misses its clock period of {period:g} ns ({1e3 / period:.4g} MHz); "
        f"run it with a slower clock, or emit it for a shorter period, which adds pipeline stages"
    )


def comparison_table(
    synthesis: Synthesis, circuit: Circuit, reports: Sequence[VendorReport], style: str = "simple"
) -> str:
    """Return a table with the totals of yosys beside those of vendors' tools, as far as told."""
    theirs = [_told_by(report, synthesis, circuit) for report in reports]
    named = {name for column in theirs for name in column}
    ours = {name: text for name, text in _told_by_us(synthesis).items() if name in (*ROWS, *named)}
    names = list(dict.fromkeys(name for column in (ours, *theirs) for name in column))
    rows = [[name, *(column.get(name, "") for column in (ours, *theirs))] for name in names]
    heads = [f"{r.tool}, {r.device}" if r.device else r.tool for r in reports]
    return tabulate(
        rows,
        headers=["", f"{synthesis.tool}, {synthesis.target}", *heads],
        tablefmt=style,
        disable_numparse=True,
        colalign=("left", *["right"] * (1 + len(reports))),
    )


def _told_by_us(synthesis: Synthesis) -> dict[str, str]:
    placed = synthesis.placement
    told: dict[str, float | None] = {
        "LUT, packed": synthesis.packed_luts,
        "LUT, raw": synthesis.luts,
        **{name: getattr(synthesis, attribute) for name, attribute in ROWS.items() if attribute},
        CLOCK: None if placed is None else placed.clock_mhz,
        **{f"LUT of {name}": row.packed_luts for name, row in synthesis.layers.items()},
    }
    return {name: _shown(value) for name, value in told.items()}


def _told_by(report: VendorReport, synthesis: Synthesis, circuit: Circuit) -> dict[str, str]:
    unit = "" if report.lut_kind in (None, "LUT6") else f" {report.lut_kind}s"
    told = {
        name: _shown(getattr(report, attribute)) for name, attribute in ROWS.items() if attribute
    }
    luts = {"LUT, packed": _shown(report.luts) + unit, "LUT, raw": ""}
    modules = {
        f"LUT of {name}": f"{report.modules[circuit.layers[name]]:,}"
        for name in synthesis.layers
        if circuit.layers[name] in report.modules
    }
    return {**luts, **told, CLOCK: _shown(report.clock_mhz), **modules}


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def layer_picture(synthesis: Synthesis) -> str:
    """Return an SVG file with bars: where the LUTs and the registers are."""
    rows = {**synthesis.layers, OTHER: synthesis.other}
    luts = {name: row.packed_luts for name, row in rows.items()}
    ffs = {name: row.ffs for name, row in rows.items()}
    return bar_page([Bars("LUTs (packed)", luts), Bars("Registers", ffs)])


def write_synthesis(
    synthesis: Synthesis, circuit: Circuit, reports: Sequence[VendorReport], folder: Path
) -> list[Path]:
    """Write `synthesis.json`, `synthesis.md` and `synthesis.svg`."""
    warning = clock_warning(synthesis, circuit)
    told = {
        **asdict(synthesis),
        "clock_period": circuit.clock_period,
        "latency": circuit.latency,
        "interval": circuit.interval,
        "warnings": [warning] if warning else [],
        "reports": [asdict(report) for report in reports],
    }
    parts = [layer_table(synthesis, "github")]
    if reports:
        parts.append(comparison_table(synthesis, circuit, reports, "github"))
    if placed := synthesis.placement:
        parts.append(f"Clock rate on {placed.device}: {placed.clock_mhz:.4g} MHz")
    if warning:
        parts.append(f"**Warning:** {warning}")
    files = {
        "synthesis.json": json.dumps(told, indent=2) + "\n",
        "synthesis.md": "\n\n".join(parts) + "\n",
        "synthesis.svg": layer_picture(synthesis),
    }
    return [write_whole(folder / name, text) for name, text in files.items()]
