"""Run a network in all ways, and say in a certificate whether they agree."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from chop.actions.certificate.artefacts import artefacts
from chop.actions.certificate.machine import machine, versions
from chop.actions.certificate.onnx_way import onnx_columns, onnx_files
from chop.actions.certificate.simulation_way import bounds_of, simulation_column
from chop.actions.certificate.vectors import checksum
from chop.actions.certificate.verilog_way import has_circuit, verilog_column
from chop.actions.certificate.ways import (
    WAYS,
    Column,
    Subject,
    Way,
    integers_column,
    way_of,
)
from chop.actions.onnx_models import ONNX

__all__ = ["FORMAT", "Certificate", "certified", "chosen_ways", "missing_ways"]

logger = logging.getLogger(__name__)

# what adds a way to a project
COMMANDS: dict[Way, str] = {"onnx": "ch export", "verilog": "ch emit"}
FORMAT, VERSION = "mase-certificate", 1


@dataclass(frozen=True)
class Certificate:
    """The record of a comparison, and the first difference in one sentence."""

    record: Mapping[str, Any]
    difference: str | None

    def table(self) -> str:
        """Return the columns of the certificate as rows, for a terminal."""
        metric = self.record["network"]["metric"].capitalize()
        rows = [
            {
                "Way": way_of(column),
                "File": column["file"] or "",
                metric: "" if column["score"] is None else f"{column['score']:.4f}",
                "Mismatches": _mismatches(column),
            }
            for column in self.record["ways"]
        ]
        rows += [{"Way": way, "Mismatches": "missing"} for way in self.record["missing"]]
        return tabulate(rows, headers="keys", disable_numparse=True)


def _mismatches(column: Mapping[str, Any]) -> str:
    if column["way"] == "integers":
        return "the reference"
    return "not compared" if column["mismatches"] is None else f"{column['mismatches']:,}"


def missing_ways(
    folder: Path, commands: Mapping[Way, str] = COMMANDS, model: Path | None = None
) -> dict[Way, str]:
    """Return what a project does not have, with the commands that add it."""
    missing: dict[Way, str] = {}
    if not onnx_files(folder, model):
        missing["onnx"] = f"there is no ONNX file in {folder / ONNX}; add it with "
    if not has_circuit(folder):
        missing["verilog"] = f"there is no circuit in {folder / 'hardware'}; add it with "
    return {way: reason + commands[way] for way, reason in missing.items()}


def chosen_ways(against: Sequence[Way], missing: Mapping[Way, str]) -> list[Way]:
    """Return the ways to compare; refuse to go on without one that is named."""
    for way in against:
        if way in missing:
            raise FileNotFoundError(missing[way])
    wanted = {*against, "integers"} if against else set(WAYS) - missing.keys()
    return [way for way in WAYS if way in wanted]


def certified(
    subject: Subject,
    ways: Sequence[Way],
    *,
    network: Path | None = None,
    names: Mapping[str, str] | None = None,
    required: Sequence[Way] = (),
    missing: Mapping[Way, str] | None = None,
    command: str = "",
    options: Mapping[str, Any] | None = None,
    earlier: Mapping[str, Any] | None = None,
) -> Certificate:
    """Run the vectors in all `ways`, of which those in `required` must be compared.

    `network` is the saved graph, and `earlier` a certificate.
    """
    for finding in subject.integers.findings:
        logger.warning("%s", finding)
    files = [asdict(each) for each in artefacts(subject.folder, network, ways)]
    columns, bounds = _columns(subject, ways)
    difference = _difference(subject, columns, earlier) or _not_compared(columns, required)
    is_compared = any(column.mismatches is not None or column.faults for column in columns)
    record = {
        "format": FORMAT,
        "version": VERSION,
        "verdict": _verdict(difference, is_compared),
        "difference": difference,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "options": dict(options or {}),
        "network": {
            **(names or {}),
            "checksum": subject.digest,
            "metric": subject.task.main,
            "inputs": list(subject.integers.inputs),
            "outputs": list(subject.integers.outputs),
            "notes": list(subject.integers.notes),
        },
        "artefacts": files,
        "vectors": subject.vectors.described(),
        "codes": checksum(subject.expected),
        "bounds": bounds,
        "findings": list(subject.integers.findings),
        "ways": [column.described(subject.vectors) for column in columns],
        "missing": dict(missing or {}),
        "versions": versions(_verilator(subject) if "verilog" in ways else None),
        "machine": machine(),
    }
    return Certificate(record, difference)


def _columns(subject: Subject, ways: Sequence[Way]) -> tuple[list[Column], dict[str, Any]]:
    """Return the columns of all ways, and the bounds of the layers."""
    columns: list[Column] = []
    bounds: dict[str, Any] = {}
    count = f"{len(subject.vectors):,}"
    for way in ways:
        if way == "simulation":
            logger.info("Running %s vectors through the float simulation...", count)
            column, bounds = simulation_column(subject)
            columns.append(column)
        elif way == "integers":
            logger.info("Running %s vectors through the integer graph...", count)
            columns.append(integers_column(subject))
        elif way == "onnx":
            for path in onnx_files(subject.folder, subject.file):
                logger.info("Running %s vectors through %s...", count, subject.inside(path))
                columns += onnx_columns(subject, path)
        else:
            logger.info("Running %s vectors through the circuit in Verilator...", count)
            columns.append(verilog_column(subject))
    return columns, bounds or bounds_of(subject)


def _verdict(difference: str | None, is_compared: bool) -> str:
    if not is_compared:
        return "not compared"
    return "equal" if difference is None else "different"


def _difference(
    subject: Subject, columns: Sequence[Column], earlier: Mapping[str, Any] | None
) -> str | None:
    """Return the first difference in one sentence, or that nothing was compared; else None."""
    wrong = next((column for column in columns if column.differs), None)
    if wrong is None:
        if any(column.mismatches is not None for column in columns):
            return None
        reasons = [f"{c.label}: {note}" for c in columns for note in c.notes]
        return f"nothing was compared: {', '.join(reasons)}"
    sentence = wrong.sentence(subject.vectors)
    others = [column.network for column in columns if column.network and column.way != "integers"]
    if earlier is not None:
        others.append(earlier["network"]["checksum"])
    if len(others) > 1 and len(set(others)) == 1 and others[0] != subject.digest:
        sentence += "; the other files are of one network, so the saved graph has been changed"
    return sentence


def _not_compared(columns: Sequence[Column], required: Sequence[Way]) -> str | None:
    """Return that a way that must be compared was only looked at; else None."""
    for way in required:
        mine = [column for column in columns if column.way == way and way != "integers"]
        if mine and all(column.mismatches is None for column in mine):
            reasons = [f"{c.label}: {note}" for c in mine for note in c.notes]
            return f"{way} was not compared: {', '.join(reasons)}"
    return None


def _verilator(subject: Subject) -> str:
    from chop.hardware.simulation.programs import verilator

    return verilator(subject.builds / "logs")[1]
