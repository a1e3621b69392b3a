"""Make the page of a search from its record and the files in `assets`."""

from __future__ import annotations

import base64
import hashlib
import string
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from chop.actions.search.results.page import sections
from chop.actions.search.results.page.circuits import circuits_section
from chop.actions.search.results.page.columns import page_data
from chop.actions.search.results.page.markup import Html, join, json_block, tag
from chop.actions.search.results.page.reading import page_errors, read_record
from chop.actions.search.results.page.record import SearchRecord
from chop.system.files import write_whole

CHART = ("basics.js", "axes.js", "pen.js", "scatter.js", "zoom.js", "trials.js")
PARTS = ("curves.js", "brush.js", "parallel.js", "design.js", "tables.js", "live.js", "view.js")
SCRIPTS = (*CHART, *PARTS, "page.js")


def write_report(file: Path, output: Path | None = None) -> Path:
    """Write the page of the search in `file`, beside it if no output file is given."""
    return write_page(read_record(file), file, output)


def write_page(record: SearchRecord, file: Path, output: Path | None = None) -> Path:
    """Write the page of a search, beside its `file` if no output file is given."""
    with page_errors(file):
        page = report_page(record).encode()
    return write_whole((output or file.with_name("report.html")).expanduser(), page)


def report_page(record: SearchRecord, live: str | None = None) -> str:
    """Return a complete HTML file, which may not load anything else.

    With `live`, the version of a page that a server gives out, it asks that server for newer ones.
    """
    return assembled(
        "page.html",
        SCRIPTS,
        page_data(record),
        live=live,
        title=f"{sections.title(record)} · search",
        heading=tag("h1", sections.title(record)),
        subtitle=sections.subtitle(record, is_live=live is not None),
        facts=sections.facts(record),
        drawing="Pareto front" if len(record.goals) > 1 else "All designs",
        listing="Designs on the front" if len(record.goals) > 1 else "Best design",
        front=sections.front_table(record),
        importance=sections.importance(record),
        tested=sections.tested(record) or "",
        circuits=circuits_section(record) or "",
        failed=sections.failed(record),
        origin=sections.origin(record),
    )


def waiting_page(reason: str, version: str) -> str:
    """Return the page of a search without trials, which asks its server for a newer one."""
    told = f"{reason[:1].upper()}{reason[1:]}. This page shows the first trial when it is done."
    start = "startLive(() => false, () => {});\n"
    parts = {"heading": tag("h1", "Waiting for the first trial"), "reason": join([told])}
    return assembled(
        "waiting.html", ["live.js"], {}, title="Search", live=version, start=start, **parts
    )


def assembled(
    template: str,
    scripts: Sequence[str],
    data: dict[str, Any],
    *,
    title: str,
    live: str | None = None,
    start: str = "",
    **parts: str,
) -> str:
    """Return a page from the template of its body, its scripts and its data.

    Nothing else may run in it.
    """
    style = _asset("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_asset, scripts)) + start + "})();\n"
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}"
    policy += "" if live is None else "; connect-src 'self'"
    colours = "kind" if template == "page.html" else "search"
    body = _filled(
        template,
        scatter=_filled("scatter.html", colours=colours),
        trials=_asset("trials.html"),
        live="" if live is None else _live_bar(live),
        overlays=_filled("overlays.html", data=json_block(data)).rstrip(),
        **parts,
    )
    facts = {"policy": policy, "style": style, "script": script, "title": tag("title", title)}
    return _filled("frame.html", body=body.rstrip("\n"), **facts)


def _filled(template: str, **parts: str) -> str:
    return string.Template(_asset(template)).substitute(parts)


def _live_bar(version: str) -> Html:
    """Return the part of a page that its server keeps up to date."""
    box = tag("label", Html('<input type="checkbox" id="follow" checked> '), "Follow the search")
    note = tag("span", id="live-note", class_="quiet", role="status")
    return tag("div", box, " ", note, id="live", class_="controls", data_version=version)


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash by which the browser allows a script or a style."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
