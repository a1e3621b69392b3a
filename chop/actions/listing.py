"""Printing of registered things for `ch list`."""

from __future__ import annotations

import os
from typing import Any

Row = dict[str, Any]


def print_rows(rows: list[Row]) -> None:
    """Print a table, or a paragraph per row for things with options, which are long."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width to wrap at
        console = Console(width=int(os.environ.get("COLUMNS", "200")))
    if "options" in rows[0]:
        for row in rows:
            console.print(_paragraph(row))
    else:
        console.print(_table(rows))


def _paragraph(row: Row) -> Any:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    facts = [f"also {_cell(row['aliases'])}"] if row.get("aliases") else []
    facts += [str(row["kind"])] if "kind" in row else []
    facts += [f"needs {_cell(row['needs'])}"] if row.get("needs") else []
    facts += ["Python only"] if row.get("python_only") else []
    title = Text(row["name"], style="bold")
    title.append(f"  ({'; '.join(facts)})" if facts else "", style="not bold dim")
    body = Text("\n".join([row["about"], *row["options"]]))
    return Group(title, Padding(body, (0, 0, 1, 4), expand=False))


def _table(rows: list[Row]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(rows[0]):
        table.add_column(column, style="bold" if i == 0 else "", overflow="fold", no_wrap=i == 0)
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
