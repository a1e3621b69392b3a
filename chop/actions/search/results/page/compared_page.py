"""The page that compares two searches."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chop.actions.search.results.page import sections
from chop.actions.search.results.page.comparison import Comparison, compared
from chop.actions.search.results.page.markup import Html, join, table, tag
from chop.actions.search.results.page.numbers import decimals, duration
from chop.actions.search.results.page.page import CHART, assembled
from chop.actions.search.results.page.reading import page_errors, read_record
from chop.actions.search.results.page.record import SearchRecord
from chop.system.files import write_whole

SCRIPTS = (*CHART, "tables.js", "comparison.js")


def write_comparison(files: Sequence[Path], output: Path | None = None) -> Path:
    """Write the page about several searches, beside the first if no output file is given."""
    records, names = [read_record(file) for file in files], [project_of(file) for file in files]
    with page_errors(files[0]):
        page = comparison_page(records, names).encode()
    beside = files[0].with_name(f"compared_with_{names[1]}.html")
    return write_whole((output or beside).expanduser(), page)


def project_of(file: Path) -> str:
    """Return the name of the project of a search, or of the folder that its file is in."""
    folder = file.resolve().parent
    in_project = folder.name == "search_ckpts" and folder.parent.name == "software"
    return (folder.parents[1] if in_project else folder).name or file.stem


def comparison_page(records: Sequence[SearchRecord], names: Sequence[str]) -> str:
    """Return a complete HTML file about searches, which may not load anything else."""
    both = compared(records, names)
    title = " and ".join(both.names)
    return assembled(
        "comparison.html",
        SCRIPTS,
        both.data(),
        title=f"{title} · searches",
        heading=tag("h1", title),
        subtitle=_subtitle(both),
        facts=_facts(both),
        volume=_volume(both),
        fronts=_fronts(both),
        origin=_origin(both),
    )


def _subtitle(both: Comparison) -> Html:
    goals = ", ".join(both.goals) or "no common objective"
    lead = tag("p", f"Two searches, compared by {goals}.", class_="lead")
    differ = tag(
        "p",
        tag("strong", "Different data."),
        " The searches were measured on different data, so their scores do not compare.",
        class_="note",
    )
    simulated = any(record.simulated for record in both.records)
    note = tag("p", tag("strong", "Simulated data."), " ", sections.SIMULATED, class_="note")
    return join([lead, None if both.same_data else differ, note if simulated else None])


def _facts(both: Comparison) -> Html:
    """Return a table with one column for each search."""

    def row(name: str, values: Sequence[Any]) -> list[Any]:
        return [name, *("–" if value is None else value for value in values)]

    done = [[trial for trial in record.trials if trial.is_complete] for record in both.records]
    rows = [
        row("Model", [record.model for record in both.records]),
        row("Data set", [record.dataset_title or record.dataset for record in both.records]),
        row("Space", [record.space.name for record in both.records]),
        row("Size of the space", [sections.size(record.space.size) for record in both.records]),
        row("Sampler", [record.sampler for record in both.records]),
        row("Seed", [record.seed for record in both.records]),
        row("Trials done", [f"{len(trials):,}" for trials in done]),
        row("Took", [duration(record.seconds) for record in both.records]),
    ]
    return table("Both searches", ["", *both.names], rows)


def _volume(both: Comparison) -> Html:
    """Return the hypervolume of each front, with the reference point that they share."""
    if not both.reference:
        return tag("p", "Not known: no objective is measured by both searches.")
    rows = [
        [
            name,
            _right(f"{both.hypervolume(search):.4f}"),
            _right(f"{len(both.fronts[search]):,}"),
            _right(f"{both.beaten(search):,}"),
        ]
        for search, name in enumerate(both.names)
    ]
    heads = ("hypervolume", "designs on the front", "of them dominated by the other search")
    head = ["search", *(tag("th", text, scope="col", class_="n") for text in heads)]
    ends = "; ".join(f"{name} {worst:g} to {best:g}" for name, (worst, best) in _ends(both))
    note = f"The share of the box from the worst to the best values of both searches: {ends}."
    return join([table("Hypervolume of both fronts", head, rows), tag("p", note, class_="quiet")])


def _ends(both: Comparison) -> list[tuple[str, tuple[float, float]]]:
    return [(name, (float(a), float(b))) for name, (a, b) in both.reference.items()]


def _right(text: str) -> Html:
    return tag("td", text, class_="n")


def _fronts(both: Comparison) -> Html:
    """Return one table of both fronts, the best in the first goal first."""
    designs = list(itertools.chain(*both.fronts))
    if not designs:
        return tag("p", "No search has completed a trial within its constraints.")
    first = both.goals[0]
    sign = -1 if both.directions[first] == "maximize" else 1
    designs.sort(key=lambda design: sign * (design.metrics[first] or 0.0))
    names = both.metrics[: sections.MAX_METRICS]
    digits = {name: decimals(d.metrics.get(name) for d in designs) for name in names}
    rows = []
    for design in designs[: sections.MAX_ROWS]:
        samples = both.records[design.search].samples
        values = (
            sections.value_cell(design.metrics.get(n), digits[n], samples.get(n)) for n in names
        )
        search, trial = both.names[design.search], design.trial.number
        chooser = sections.choose_button(trial, search=design.search, name=search)
        rows.append(
            [
                tag("th", chooser, scope="row", data_value=trial),
                tag("td", search, class_="n", data_value=design.search),
                *values,
            ]
        )
    heads = (sections.sortable(n, both.directions.get(n), is_sorted=n == first) for n in names)
    head = [sections.sortable("trial"), sections.sortable("search"), *heads]
    made = table("Designs of both fronts", head, rows, id="front-table")
    more = f"The first {sections.MAX_ROWS} of {len(designs):,} designs; the drawing shows all."
    return join([made, tag("p", more) if len(designs) > sections.MAX_ROWS else None])


def _origin(both: Comparison) -> Html:
    """Return the command of each search."""
    return join(
        join([tag("h3", name), tag("pre", tag("code", record.command), tabindex=0)])
        for name, record in zip(both.names, both.records, strict=True)
    )
