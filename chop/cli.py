"""`ch`: parse, act, exit with 0 (done), 1 (failed) or 2 (wrong usage)."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Annotated, Any

import typer

from chop.catalogue import KINDS, Row
from chop.registry import UnknownName
from chop.version import __version__

app = typer.Typer(
    name="ch",
    help="MASE: read a PyTorch model as a graph, analyse it, and make it fit real hardware.",
    epilog="Start with `ch list passes`. Each command has a --help of its own.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"mase {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Print the version.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


@app.command("list")
def list_command(
    kind: Annotated[
        str | None,
        typer.Argument(
            help=f"One of {', '.join(KINDS)}; without it, a count of each.", metavar="KIND"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, for other programs to read.")
    ] = False,
) -> None:
    """List what there is: number formats, passes, ops, statistics, models, datasets.

    `ch list` counts each kind, `ch list passes` shows one, `ch list passes --json` is for programs.
    """
    if kind is not None and kind not in KINDS:
        raise UnknownName("kind", kind, list(KINDS))
    if kind is not None:
        rows = KINDS[kind].rows()
    else:
        rows = [{"kind": k, "count": len(v.rows()), "about": v.about} for k, v in KINDS.items()]
    if as_json:
        print(json.dumps(rows, indent=2))
    elif rows:
        _print_rows(rows)
    else:
        print(f"no {kind} are registered yet")


def _print_rows(rows: list[Row]) -> None:
    """A table; things with options take a paragraph each, as options are long."""
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

    facts = [str(row["kind"])] if "kind" in row else []
    facts += [f"needs {_cell(row['needs'])}"] if row.get("needs") else []
    title = Text(row["name"], style="bold")
    title.append(f"  ({'; '.join(facts)})" if facts else "", style="not bold dim")
    body = Text("\n".join([row["about"], *row["options"]]))
    return Group(title, Padding(body, (0, 0, 1, 4)))


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


def main(argv: list[str] | None = None) -> None:
    """Run one command; what the user got wrong is one sentence and exit code 2."""
    if hasattr(signal, "SIGPIPE"):  # `ch list ops | head` ends quietly
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        app(args=argv, prog_name="ch", standalone_mode=True)
    except UnknownName as error:
        print(f"ch: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
