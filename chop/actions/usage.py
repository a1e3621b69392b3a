"""Errors in a command line, which typer and click find, in the form of all other errors."""

from __future__ import annotations

import re
from typing import Any

import typer

from chop.actions.config import OPTIONS
from chop.options import did_you_mean

UsageError: Any = typer.BadParameter.__base__  # click's, or the copy of click in newer typers
WORDS = ("--model", "--dataset")  # are given without a flag
UNKNOWN_COMMAND = re.compile(r"^No such command '(.*?)'")
UNEXPECTED = re.compile(r"^Got unexpected extra arguments?\(?s?\)? \((.*)\)$")


def is_help(error: Any) -> bool:
    """Return whether the error only means that the help was shown."""
    return type(error).__name__ == "NoArgsIsHelpError"


def usage_sentence(error: Any) -> str:
    """Return what is wrong with a command line, and what to do about it."""
    context, text = error.ctx, error.format_message()
    see = "" if context is None else f"; see '{context.command_path} --help'"
    if type(error).__name__ == "NoSuchOption":
        return _unknown_option(error.option_name, context, see)
    if found := UNKNOWN_COMMAND.match(text):
        name, known = found[1], context.command.list_commands(context)
        return f"unknown command {name!r}{did_you_mean(name, known, see)}"
    if found := UNEXPECTED.match(text):
        return f"unexpected argument {found[1]!r}{see}"
    text = text.removesuffix(".").replace("requires an argument", "needs a value")
    text = text.replace(" [OTHER]'", "'")  # the optional second word of a missing argument
    return f"{text[:1].lower()}{text[1:]}{see}"


def _unknown_option(name: str, context: Any, see: str) -> str:
    command, action = context.command, context.info_name
    takes = [parameter.name for parameter in command.get_params(context)]
    if name in WORDS and name.removeprefix("--") in takes:
        return (
            f"unknown option {name!r}; model and data set are given without a flag, "
            f"as in 'ch {action} MODEL DATASET'"
        )
    if actions := [f"'ch {other}'" for other in _actions_with(name)]:
        *others, last = actions
        those = f"{', '.join(others)} and {last}" if others else last
        return f"{name!r} is an option of {those}, not of 'ch {action}'{see}"
    flags = [flag for parameter in command.get_params(context) for flag in parameter.opts]
    return f"unknown option {name!r}{did_you_mean(name, flags, see)}"


def _actions_with(flag: str) -> tuple[str, ...]:
    """Return the actions that have a flag which others lack."""
    return next((o.opt.only for o in OPTIONS.values() if flag in o.flags), ())
