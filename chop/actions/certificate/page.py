"""The certificate as a page that loads nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from chop.actions.certificate.ways import shown, way_of
from chop.actions.search.results.page.markup import Html, join, table, tag

__all__ = ["certificate_page"]

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.verdict { border-left: .4rem solid; padding: .5rem 1rem; }
.equal { border-color: #1a7f37; } .different, .not-compared { border-color: #cf222e; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; } caption { text-align: left; padding: .3rem 0; }
th, td { border-bottom: 1px solid #8886; padding: .25rem .8rem .25rem 0; text-align: left; }
td, th { vertical-align: top; } code { overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; } dd { margin: 0; }
"""
HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src '{policy}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
"""
VERDICTS = {
    "equal": "All ways give the same codes for all vectors.",
    "different": "The ways differ.",
    "not compared": "Nothing was compared.",
}
EQUAL_PART = (
    "All ways that the project has give the same codes for all vectors; others are missing."
)


def certificate_page(record: Mapping[str, Any]) -> str:
    """Return a complete HTML file."""
    network = record["network"]
    names = " on ".join(network[key] for key in ("model", "dataset") if network.get(key))
    title = f"Certificate of {names}" if names else "Certificate"
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    body = join(
        [
            tag("h1", title),
            _verdict(record),
            _section("Results", _results(record)),
            _section("Vectors", _facts(_vectors(record))),
            _section("Bounds", _bounds(record["bounds"])),
            *_findings(record),
            _section("Files", _files(record)),
            _section("Made with", _facts(_made_with(record))),
            _section("Run it again", tag("p", tag("code", record["command"]))),
        ]
    )
    head = HEAD.format(policy=f"sha256-{digest}") + tag("title", title)
    return f"{head}\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"


def _section(title: str, content: Html) -> Html:
    return tag("section", tag("h2", title), content)


def _verdict(record: Mapping[str, Any]) -> Html:
    verdict = record["verdict"]
    said = EQUAL_PART if verdict == "equal" and record["missing"] else VERDICTS[verdict]
    parts = [tag("p", tag("strong", said))]
    parts += [tag("p", f"{_capital(record['difference'])}.")] if record["difference"] else []
    missing = record["missing"].items()
    parts += [tag("p", f"Not compared, {way}: {_capital(reason)}.") for way, reason in missing]
    return tag("div", *parts, class_=f"verdict {verdict.replace(' ', '-')}")


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _results(record: Mapping[str, Any]) -> Html:
    """Return the ways as columns."""
    ways = record["ways"]
    rows = {
        "file": [way["file"] or "" for way in ways],
        f"{record['network']['metric']} on the samples": [_score(way["score"]) for way in ways],
        "mismatches": [_mismatches(way) for way in ways],
        "first difference": ["" if way["mismatches"] is None else _first(way) for way in ways],
        "faults": ["; ".join(way["faults"]) for way in ways],
        "notes": ["; ".join(way["notes"]) for way in ways],
    }
    head = ["", *(way_of(way) for way in ways), *record["missing"]]
    empty = ["missing" for _ in record["missing"]]
    rows = {
        name: row + (empty if name == "mismatches" else [""] * len(empty))
        for name, row in rows.items()
    }
    return table("Results of all ways", head, [[name, *row] for name, row in rows.items()])


def _score(score: float | None) -> str:
    return "–" if score is None else f"{score:.4f}"


def _mismatches(way: Mapping[str, Any]) -> str:
    if way["way"] == "integers":
        return "the reference"
    if way["mismatches"] is None:
        return "not compared"
    vectors = way["wrong_vectors"]
    return f"{way['mismatches']:,}" + (f" in {vectors:,} vectors" if vectors else "")


def _first(way: Mapping[str, Any]) -> str:
    first = way["first"]
    if first is None:
        return "none"
    place = f" {first['place']}" if first["place"] else ""
    codes = f"{shown(first['got'])} instead of {shown(first['expected'])}"
    return f"{first['node']}{place}, {first['vector']}: {codes}"


def _vectors(record: Mapping[str, Any]) -> dict[str, Any]:
    vectors = record["vectors"]
    return {
        f"Samples of the {vectors['split']} split": f"{vectors['samples']:,}",
        "Random vectors": f"{vectors['random']:,}, seed {vectors['seed']}",
        "Boundary vectors": f"{vectors['boundary']:,}",
        "SHA-256 of the vectors": tag("code", vectors["sha256"]),
        "SHA-256 of the codes": tag("code", record["codes"]),
    }


def _bounds(bounds: Mapping[str, Any]) -> Html:
    about = (
        f"Interval analysis proves {bounds['proven']} layers: no sum reaches 2^24 steps, so that "
        f"float32 computes them exactly for every input. {bounds['observed']} layers are observed: "
        f"what is said of them holds for the vectors."
    )
    rows = [
        [
            *(layer[key] for key in ("node", "op", "type")),
            "" if layer["lowest"] is None else f"{layer['lowest']:,} … {layer['highest']:,}",
            layer["accumulator_width"] or "",
            layer["equality"],
            f"{layer['mismatches']:,}" if layer["values"] else "not compared",
        ]
        for layer in bounds["layers"]
    ]
    head = ["node", "op", "type", "codes", "accumulator bits", "equality", "mismatches"]
    return join([tag("p", about), table("Bounds of all layers", head, rows)])


def _findings(record: Mapping[str, Any]) -> list[Html]:
    """Return what analysis says of numbers that are lost and sums that may wrap."""
    found = [tag("p", _capital(finding) + ".") for finding in record["findings"]]
    return [_section("Findings", join(found))] if found else []


def _files(record: Mapping[str, Any]) -> Html:
    network = tag("p", "Checksum of the network: ", tag("code", record["network"]["checksum"]))
    rows = [
        [row["file"], row["kind"], f"{row['bytes']:,}", tag("td", tag("code", row["sha256"]))]
        for row in record["artefacts"]
    ]
    return join([network, table("Files by checksum", ["file", "kind", "bytes", "SHA-256"], rows)])


def _made_with(record: Mapping[str, Any]) -> dict[str, Any]:
    machine = record["machine"]
    vnni = "with VNNI" if machine["vnni"] else "without VNNI"
    versions = {name: text for name, text in record["versions"].items() if text is not None}
    return {
        "Made": record["made"],
        **versions,
        "Processor": f"{machine['cpu']} ({machine['architecture']}), {vnni}",
        "Flags": ", ".join(machine["flags"]),
    }


def _facts(rows: Mapping[str, Any]) -> Html:
    return tag("dl", *(join([tag("dt", name), tag("dd", text)]) for name, text in rows.items()))
