"""The command line of an action, derived from the fields of `RunConfig`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from chop.actions.base import ACTIONS
from chop.actions.config import OPTIONS, HelpPanel
from chop.actions.info import KINDS
from chop.actions.options import ConfigOption

__all__ = ["ActionCommand", "ActionGroup", "command_function", "info_option", "with_info_kinds"]


NOT_GIVEN: tuple[Any, ...] = (None, False, [])


def info_option(**more: Any) -> Any:
    """Return the option `--info`, for an action and for `ch`."""
    return typer.Option(
        "--info",
        metavar=f"[{'|'.join(KINDS)}]",
        help="List the models and data sets.",
        rich_help_panel=HelpPanel.INFORMATION,
        **more,
    )


class _HelpLast:
    """Shows `--help` in the panel "Information", as in the labs."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.rich_help_panel, option.metavar = HelpPanel.INFORMATION, ""
        return option


class ActionCommand(_HelpLast, TyperCommand):
    """The command of an action."""


class ActionGroup(_HelpLast, TyperGroup):
    """The command `ch`; its help lists the commands first."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from rich.console import Console

        commands = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        rows = [(c.name, c.get_short_help_str(limit=1000)) for c in commands if c is not None]
        options = [
            (", ".join(sorted(p.opts, key=len, reverse=True)), _one_line(getattr(p, "help", None)))
            for p in self.get_params(ctx)
        ]
        console = Console(highlight=False)
        console.print(f"\n[bold]Usage:[/bold] {ctx.command_path} COMMAND …\n\n{self.help}\n")
        console.print(_panel("Commands", rows))
        console.print(_panel("Options", options))
        console.print(f"\n{self.epilog}\n")


def _one_line(help: str | None) -> str:
    return " ".join((help or "").split())


def _panel(title: str, rows: Sequence[tuple[str | None, str]]) -> Any:
    """Return a box in the style of typer's."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, about in rows:
        table.add_row(Text(name or "", "bold cyan"), Text(about))
    return Panel(table, title=title, title_align="left", border_style="dim")


def command_function(action: str, run: Callable[[dict[str, Any]], Any]) -> Callable[..., None]:
    """Return a function with the options as parameters; it calls `run` with those that are set."""

    def command(**values: Any) -> None:
        run({name: value for name, value in values.items() if value not in NOT_GIVEN})

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, keyword, default=None, annotation=annotation)
        for name, annotation in _annotations(action)
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _annotations(action: str) -> Iterator[tuple[str, Any]]:
    instead = ACTIONS[action].first_argument
    for name in ("model", "dataset"):
        yield name, Annotated[str | None, _parameter(OPTIONS[name], instead)]
        instead = None
    for group in vars(HelpPanel).values():
        for name, option in OPTIONS.items():
            available = not option.opt.only or action in option.opt.only
            if option.opt.group == group and option.flags and available:
                yield name, Annotated[_parsed_as(option), _parameter(option)]
    yield "info", Annotated[str | None, info_option()]


def _parsed_as(option: ConfigOption) -> Any:
    """Return text types only: `ConfigOption.from_flag` parses the value, as for the file."""
    if option.is_switch:
        return bool | None
    return list[str] | None if option.is_list else str | None


def _parameter(option: ConfigOption, instead: str | None = None) -> Any:
    """Return the argument or the flag of an option; its help has the choices and the default.

    `instead` is what the value may be if no other argument follows.
    """
    notes = [" | ".join(option.choices)] if option.choices else []
    notes += [f"default: {option.shown_default}"] if option.shown_default else []
    about = (
        option.opt.help if instead is None else f"{instead}; or, before DATASET: {option.opt.help}"
    )
    help = about + "".join(rf" [dim]\[{note}][/dim]" for note in notes)
    shown: dict[str, Any] = {"help": help, "rich_help_panel": option.opt.group}
    if option.flags:
        return typer.Option(*option.flags, metavar=option.metavar, show_default=False, **shown)
    metavar = option.name.upper() if instead is None else f"PROJECT|{option.name.upper()}"
    return typer.Argument(metavar=metavar, show_default=False, **shown)


def with_info_kinds(argv: list[str]) -> list[str]:
    """Replace `--info` alone by `--info=all`, as options of typer always take a value.

    >>> with_info_kinds(["train", "--info", "jsc-tiny", "jsc"])
    ['train', '--info=all', 'jsc-tiny', 'jsc']
    """
    return [
        "--info=all" if argument == "--info" and following not in KINDS else argument
        for argument, following in zip_longest(argv, argv[1:])
    ]
