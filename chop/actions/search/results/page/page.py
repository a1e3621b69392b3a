"""Make the page of a search from its record and the files in `assets`."""

from __future__ import annotations

import base64
import hashlib
import string
from importlib import resources
from pathlib import Path

from chop.actions.search.results.page import sections
from chop.actions.search.results.page.columns import page_data
from chop.actions.search.results.page.markup import json_block, tag
from chop.actions.search.results.page.reading import page_errors, read_record
from chop.actions.search.results.page.record import SearchRecord
from chop.files import write_whole

SCRIPTS = ("basics.js", "scatter.js", "curves.js", "parallel.js", "design.js", "page.js")


def write_report(file: Path, output: Path | None = None) -> Path:
    """Write the page of the search in `file`, beside it if no output file is given."""
    return write_page(read_record(file), file, output)


def write_page(record: SearchRecord, file: Path, output: Path | None = None) -> Path:
    """Write the page of a search, beside its `file` if no output file is given."""
    with page_errors(file):
        page = report_page(record).encode()
    return write_whole((output or file.with_name("report.html")).expanduser(), page)


def report_page(record: SearchRecord) -> str:
    """Return a complete HTML file, which may not load anything else."""
    style = _asset("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_asset, SCRIPTS)) + "})();\n"
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}"
    return string.Template(_asset("page.html")).substitute(
        policy=policy,
        style=style,
        script=script,
        data=json_block(page_data(record)),
        title=tag("title", f"{sections.title(record)} · search"),
        heading=tag("h1", sections.title(record)),
        subtitle=sections.subtitle(record),
        facts=sections.facts(record),
        drawing="Pareto front" if len(record.goals) > 1 else "All designs",
        listing="Designs on the front" if len(record.goals) > 1 else "Best design",
        front=sections.front_table(record),
        importance=sections.importance(record),
        tested=sections.tested(record) or "",
        failed=sections.failed(record),
        origin=sections.origin(record),
    )


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash by which the browser allows a script or a style."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
