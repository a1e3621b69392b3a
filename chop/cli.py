"""The command `ch`, with exit codes 0 (success), 1 (failure) and 2 (wrong usage)."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import signal
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from chop.actions.base import ACTIONS, Action
from chop.actions.catalogue import KINDS
from chop.actions.command import (
    ActionCommand,
    ActionGroup,
    command_function,
    info_option,
    with_info_kinds,
)
from chop.actions.config import ConfigError, HelpPanel, default_project_dir
from chop.actions.flags import with_flags
from chop.actions.info import info
from chop.actions.run import import_files, prepare
from chop.actions.usage import UsageError, is_help, usage_sentence
from chop.registry import UnknownName
from chop.system.log import printable
from chop.system.memory import OutOfMemory, memory_for
from chop.system.processes import Terminated, is_first_process
from chop.system.redaction import redacted_text
from chop.training.interruption import Interrupted
from chop.version import __version__

logger = logging.getLogger(__name__)

TERMINATED = 128 + signal.SIGTERM
app = typer.Typer(
    name="ch",
    cls=ActionGroup,
    help="MASE: quantise, prune, train and search PyTorch models for efficient hardware.",
    epilog="'ch COMMAND --help' explains the options of a command. For example, "
    "'ch train jsc-tiny jsc-sim --learning-rate 1e-3' trains a small network.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_requested: bool) -> None:
    if is_requested:
        print(f"mase {__version__}")
        raise typer.Exit


def _show_info(kind: str | None) -> None:
    if kind is not None:
        print(info(kind))
        raise typer.Exit


@app.callback()
def common(
    listed: Annotated[str | None, info_option(callback=_show_info, is_eager=True)] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            metavar="",
            help="Print the version.",
            rich_help_panel=HelpPanel.INFORMATION,
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    pass


def _run(action: Action, flags: dict[str, Any]) -> None:
    """Check the options, print them, and run the action."""
    if "info" in flags:
        import_files([Path(file) for file in flags.get("imports", [])])
        _show_info(flags["info"])
    run = prepare(action, flags)
    if is_first_process():
        print(f"Seed set to {run.config.seed}")
        print(printable(run.table), flush=True)
    run()


for _action in ACTIONS.values():
    app.command(_action.name, cls=ActionCommand, help=_action.about)(
        command_function(_action.name, functools.partial(_run, _action))
    )


@app.command("list")
def list_command(
    kind: Annotated[
        str | None,
        typer.Argument(
            help=f"One of {', '.join(KINDS)} (default: count each kind).", metavar="KIND"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the registered formats, passes, ops, statistics, models, data sets, metrics, samplers.

    `ch list` counts each kind, `ch list passes` lists one; `--json` is for other programs.
    """
    if hasattr(signal, "SIGPIPE"):  # `ch list ops | head` ends quietly
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    kind = "runners" if kind == "metrics" else kind
    if kind is None:
        rows = [{"kind": k, "count": len(v.rows()), "about": v.about} for k, v in KINDS.items()]
    elif kind in KINDS:
        rows = KINDS[kind].rows()
    else:
        raise UnknownName("kind", kind, list(KINDS))
    if as_json:
        print(json.dumps(rows, indent=2))
    elif rows:
        from chop.actions.listing import print_rows

        print_rows(rows)
    else:
        print(f"no {kind} are registered yet")


@app.command("report")
def report_command(
    projects: Annotated[
        list[str],
        typer.Argument(
            help="Project name, project directory, or path of a search.json; two of them are "
            "compared.",
            metavar="PROJECT [OTHER]",
        ),
    ],
    project_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory that holds all runs (default: mase_output)."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Output file, in a directory that is created if it does not exist (default: "
            "report.html beside search.json).",
        ),
    ] = None,
    is_live: Annotated[
        bool,
        typer.Option("--live", help="Serve the report here, and follow a search that runs."),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port for --live (default: a free port)."),
    ] = None,
    is_to_open: Annotated[
        bool, typer.Option("--open", help="Open the report in a browser.")
    ] = False,
) -> None:
    """Write a self-contained HTML report of a search, or of two searches to compare them.

    `ch report my-search --open` shows the Pareto front, its designs, and how to repeat the search;
    `ch report my-search --live` follows a search that runs.
    """
    from chop.actions.search.results.page import find_record, serve, write_comparison, write_report

    folder = project_dir or default_project_dir()
    if len(projects) > 2 or (is_live and len(projects) > 1):
        most = "--live follows one search" if is_live else "ch report compares two searches"
        raise ConfigError(f"{most}, but {len(projects)} were given; omit the others")
    if is_live:
        if output is not None:
            raise ConfigError("--live serves the report instead of writing it; omit --output")
        serve(lambda: find_record(projects[0], folder), port or 0, _announcer(is_to_open))
        return
    if port is not None:
        raise ConfigError("--port is the port of --live; add --live, or omit --port")
    files = [find_record(project, folder) for project in projects]
    created = output.parent if output is not None and not output.parent.exists() else None
    page = write_report(files[0], output) if len(files) == 1 else write_comparison(files, output)
    if created is not None:
        print(f"Created the directory {created}", file=sys.stderr)
    print(page)
    if is_to_open:
        webbrowser.open(page.resolve().as_uri())


def _announcer(is_to_open: bool) -> Callable[[str], None]:
    """Return a function that prints the address of a report, and may open it in a browser."""

    def announce(address: str) -> None:
        print(address, flush=True)
        print("Ctrl-C ends it.", flush=True)
        if is_to_open:
            webbrowser.open(address)

    return announce


def main(argv: list[str] | None = None) -> None:
    """Run one command; report an expected error as one sentence and an exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    code = 0
    try:
        with _terminated_by_exit_code(), memory_for("continue"):
            code = app(args=with_info_kinds(arguments), prog_name="ch", standalone_mode=False)
    except UsageError as error:
        if is_help(error):
            sys.exit(2)
        _fail(ConfigError(usage_sentence(error)), 2)
    except typer.Abort:
        sys.exit(1)
    except (ConfigError, UnknownName) as error:
        _fail(error, 2)
    except (ValueError, OSError, ImportError, ArithmeticError, OutOfMemory) as error:
        _fail(error, 1)
    except Interrupted as stop:
        _fail(stop, stop.exit_code)
    sys.exit(code or 0)


@contextlib.contextmanager
def _terminated_by_exit_code() -> Iterator[None]:
    """Context in which SIGTERM exits, so that files are closed."""
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGTERM, _terminate) if is_main else None
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, handler)


def _terminate(number: int, frame: object) -> NoReturn:
    raise Terminated(TERMINATED)


def _fail(error: BaseException, code: int) -> NoReturn:
    """Print each problem on a line of stderr with its flags, log the traceback, and exit."""
    logger.debug("the error was raised here", exc_info=error)
    message = with_flags(str(error))
    problems = message.split("\n  ") if isinstance(error, ConfigError) else [message]
    lines = [" ".join(redacted_text(problem).split("\n")) for problem in problems]
    print("ch:", printable("\n  ".join(lines)), file=sys.stderr)
    sys.exit(code)


class ChopCLI:
    """The command line for scripts, as in `ChopCLI(["train", "jsc-tiny", "jsc"]).run()`."""

    def __init__(self, argv: Sequence[str] | None = None) -> None:
        self.argv = list(sys.argv[1:] if argv is None else argv)

    def run(self) -> None:
        """Run the command; raise SystemExit with the exit code if it fails."""
        try:
            main(self.argv)
        except SystemExit as end:
            if end.code:
                raise


if __name__ == "__main__":
    main()
