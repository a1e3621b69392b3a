"""Reports of Vivado and Quartus, for a comparison with yosys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

__all__ = ["VendorReport", "read_quartus_report", "read_report", "read_vivado_report"]

Rows = list[list[str]]


@dataclass(frozen=True, kw_only=True)
class VendorReport:
    """What a vendor's tool says of a circuit; None where the report does not say it.

    `luts` are LUT6 of Xilinx, two small functions in one counted once, or ALMs or logic elements
    of Intel, as `lut_kind` says. `modules` are the LUTs of each module.
    """

    tool: str
    device: str | None = None
    lut_kind: str | None = None
    luts: int | None = None
    ffs: int | None = None
    carries: int | None = None
    dsps: int | None = None
    brams: float | None = None
    depth: int | None = None
    clock_mhz: float | None = None
    modules: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was found."""
        return not self.modules and self.luts is None and self.clock_mhz is None

    def with_more(self, other: VendorReport) -> VendorReport:
        """Return what this report says, and what only the other one says, as on timing."""
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        more = {f.name: getattr(other, f.name) for f in fields(self)}
        return replace(self, **{name: more[name] for name in known if known[name] in (None, {})})


def read_report(path: str | Path) -> VendorReport:
    """Read a report of Vivado or Quartus, whichever it is."""
    text = _text(path)
    if "Vivado" in text or "| Site Type" in text:
        return read_vivado_report(path)
    if "Quartus" in text or "; Fitter Summary" in text:
        return read_quartus_report(path)
    raise ValueError(
        f"{path} is not a report of Vivado or Quartus; give the text file of report_utilization, "
        f"report_timing_summary or a *.fit.rpt"
    )


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error


# --- Vivado


def read_vivado_report(path: str | Path) -> VendorReport:
    """Read the text of `report_utilization`, also `-hierarchical`, or `report_timing_summary`."""
    text = _text(path)
    try:
        report = _vivado(text)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; let Vivado write it again") from error
    if report.is_empty:
        raise ValueError(
            f"{path} has no table of Vivado's report_utilization or report_timing_summary; write "
            f"it with `report_utilization -file FILE` after synth_design or route_design"
        )
    return report


def _vivado(text: str) -> VendorReport:
    version = re.search(r"Vivado v\.?\s*(\S+)", text)
    device = re.search(r"^\|\s*Device\s*:\s*(\S+)", text, re.MULTILINE)
    levels = [int(n) for n in re.findall(r"Logic Levels:\s+(\d+)", text)]
    used = _usage(_rows(text, "|"))
    instances = _instances(_rows(text, "|"))
    luts = _first(used, "CLB LUTs", "Slice LUTs", among=instances.get("Total LUTs"))
    return VendorReport(
        tool=f"Vivado {version[1]}" if version else "Vivado",
        device=device[1] if device else None,
        lut_kind=None if luts is None else "LUT6",
        luts=luts,
        ffs=_first(used, "CLB Registers", "Slice Registers", among=instances.get("FFs")),
        carries=_first(used, "CARRY8", "CARRY4"),
        dsps=_first(used, "DSPs", among=instances.get("DSP Blocks", instances.get("DSP48 Blocks"))),
        brams=_number(used["Block RAM Tile"]) if "Block RAM Tile" in used else None,
        depth=max(levels, default=None),
        clock_mhz=_vivado_clock(text),
        modules={module: int(_number(n)) for module, n in instances.get("modules", {}).items()},
    )


def _usage(rows: Rows) -> dict[str, str]:
    """Return the column `Used` of all tables that have one."""
    used: dict[str, str] = {}
    columns: Sequence[str] = ()
    for row in rows:
        if row[:1] == ["Site Type"] or row[:1] == ["Ref Name"]:
            columns = row
        elif columns and len(row) == len(columns) and "Used" in columns:
            used.setdefault(row[0].rstrip("*"), row[columns.index("Used")])
    return used


def _instances(rows: Rows) -> dict[str, dict[str, str]]:
    """Return the columns of the table by hierarchy, for the first row, and LUTs by module."""
    tables: dict[str, dict[str, str]] = {}
    columns: Sequence[str] = ()
    for row in rows:
        if row[:2] == ["Instance", "Module"]:
            columns = row
        elif columns and len(row) == len(columns) and "Total LUTs" in columns:
            luts = row[columns.index("Total LUTs")]
            for name, value in zip(columns, row, strict=True) if not tables else ():
                tables[name] = {"": value}
            if row[1] and not row[1].startswith("("):
                tables.setdefault("modules", {}).setdefault(row[1], luts)
    return tables


def _vivado_clock(text: str) -> float | None:
    """Return the clock rate at which the worst path has no slack left."""
    slack = re.search(r"WNS\(ns\).*\n[\s-]*\n\s*(\S+)", text)
    period = re.search(r"Period\(ns\)\s+Frequency\(MHz\).*\n.*\n.*\}\s+(\S+)\s+\S+", text)
    if slack is None or period is None or slack[1] == "NA":
        return None
    shortest = _number(period[1]) - _number(slack[1])
    if shortest <= 0:
        raise ValueError(f"a slack of {slack[1]} ns is more than the period of {period[1]} ns")
    return round(1e3 / shortest, 2)


# --- Quartus


def read_quartus_report(path: str | Path) -> VendorReport:
    """Read a `*.fit.rpt` of Quartus, or a `*.sta.rpt` for its clock rate."""
    text = _text(path)
    try:
        report = _quartus(text)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; let Quartus write it again") from error
    if report.is_empty:
        raise ValueError(
            f"{path} has no Fitter Summary or Fmax Summary of Quartus; give a *.fit.rpt or a "
            f"*.sta.rpt from the directory output_files"
        )
    return report


def _quartus(text: str) -> VendorReport:
    table = {row[0]: row[1] for row in reversed(_rows(text, ";")) if len(row) >= 2}
    version = re.search(r"Quartus .*?Version (\S+)", text)
    rates = re.findall(r"^;\s*([\d.]+) MHz\s*;\s*([\d.]+) MHz\s*;", text, re.MULTILINE)
    kinds = {"Logic utilization (in ALMs)": "ALM", "Total logic elements": "logic element"}
    return VendorReport(
        tool=f"Quartus {version[1]}" if version else "Quartus",
        device=table.get("Device"),
        lut_kind=next((kind for row, kind in kinds.items() if row in table), None),
        luts=_first(table, *kinds),
        ffs=_first(table, "Total registers", "Total dedicated logic registers"),
        dsps=_first(table, "Total DSP Blocks", "Embedded Multiplier 9-bit elements"),
        brams=_first(table, "Total RAM Blocks", "M9Ks"),
        clock_mhz=min((float(restricted) for _, restricted in rates), default=None),
    )


# --- tables


def _rows(text: str, bar: str) -> Rows:
    """Return the cells of all lines of tables."""
    return list(_split(text, bar))


def _split(text: str, bar: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        line = line.strip()
        if line.startswith(bar) and line.endswith(bar) and len(line) > 1:
            yield [cell.strip() for cell in line[1:-1].split(bar)]


def _first(
    table: Mapping[str, str], *names: str, among: Mapping[str, str] | None = None
) -> int | None:
    """Return the number in the first of the rows that exists."""
    cell = next((table[name] for name in names if name in table), (among or {}).get(""))
    return None if cell is None else int(_number(cell))


def _number(cell: str) -> float:
    """Return the first number of a cell, as in `1,234 / 32,070 ( 4 % )`."""
    found = re.match(r"-?[\d,]+(?:\.\d+)?", cell)
    if found is None:
        raise ValueError(f"{cell!r} should be a number")
    return float(found[0].replace(",", ""))
