"""`certificate.json` of a project: writing it, reading it, and comparing it with a new one."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.actions.certificate.artefacts import changes
from chop.actions.certificate.compare import FORMAT, VERSION
from chop.actions.certificate.page import certificate_page
from chop.actions.certificate.structure import damage
from chop.actions.certificate.ways import way_of
from chop.system.files import read_json, write_whole

__all__ = [
    "FILE",
    "PAGE",
    "differences",
    "read_certificate",
    "usable_certificate",
    "write_certificate",
]

logger = logging.getLogger(__name__)

FILE, PAGE = "certificate.json", "certificate.html"
AGAIN = "make it again with ch verify"


def write_certificate(record: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the certificate of a project, for programs and for people."""
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return [
        write_whole(folder / FILE, text),
        write_whole(folder / PAGE, certificate_page(record)),
    ]


def read_certificate(folder: Path) -> dict[str, Any] | None:
    """Return the certificate of a project, or None if it has none."""
    file = folder / FILE
    if not file.is_file():
        return None
    record = read_json(file, advice=AGAIN)
    if record.get("format") != FORMAT:
        raise ValueError(f"{file} is not a certificate of MASE; delete it, or {AGAIN}")
    if record.get("version") != VERSION:
        raise ValueError(f"{file} is of another version of MASE; {AGAIN}")
    if (wrong := damage(record)) is not None:
        raise ValueError(f"{file} is damaged: {wrong}; {AGAIN}")
    return record


def usable_certificate(folder: Path) -> dict[str, Any] | None:
    """Return the same, or None with a warning if it is damaged: a new one takes its place."""
    try:
        return read_certificate(folder)
    except ValueError as error:
        logger.warning("Not compared with the earlier certificate: %s", error)
        return None


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return, as clauses, what a certificate says and a repetition does not."""
    kinds = {"network", *(way["way"] for way in now["ways"])}
    files = [row for row in before["artefacts"] if row["kind"] in kinds]
    found = changes(files, now["artefacts"])
    if before["network"]["checksum"] != now["network"]["checksum"]:
        found.append("the network computes something else")
    if before["vectors"]["sha256"] != now["vectors"]["sha256"]:
        found.append("the vectors are others")
    elif before["codes"] != now["codes"]:
        found.append("the integer graph gives other codes")
    old = {(way_of(way), way["file"]): way for way in before["ways"]}
    for way in now["ways"]:
        known = old.get((way_of(way), way["file"]), way)
        for key in ("mismatches", "score"):
            if known[key] != way[key]:
                found.append(
                    f"{way['file'] or way_of(way)}: {key} {way[key]} instead of {known[key]}"
                )
    return found
