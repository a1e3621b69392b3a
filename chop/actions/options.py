"""An option of a run: a flag, a TOML key, a default, a help text and a table row in one field."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from chop.options import Form, Option, bounds
from chop.system.redaction import redacted

SIGNS = {"ge": "≥", "gt": ">"}
Row = Literal["always", "when set", "never"]
# the names of a type in the help and in the documentation
KINDS: dict[Any, tuple[str, str]] = {
    int: ("NUM", "integer"),
    float: ("NUM", "number"),
    str: ("NAME", "text"),
    Path: ("PATH", "path"),
    tuple: ("FILE", "paths"),
    bool: ("", "switch"),
    dict: ("TABLE", "table"),
}


class ConfigError(ValueError):
    """Wrong options of a run: exit code 2."""

    def __init__(self, *problems: str) -> None:
        head = f"{len(problems)} problems:\n  " if len(problems) > 1 else ""
        super().__init__(head + "\n  ".join(problems))


class HelpPanel:
    """The panels of `--help`, in the order shown."""

    MAIN = "Main arguments"
    GENERAL = "General options"
    TRAINER = "Trainer options"
    RUNTIME = "Runtime environment options"
    LANGUAGE = "Language model options"
    SEARCH = "Search options"
    HARDWARE = "Hardware options"
    EXPORT = "Export options"
    VERIFICATION = "Verification options"
    PROJECT = "Project options"
    INFORMATION = "Information"
    FILE = "Tables of the TOML file"


@dataclass(frozen=True)
class Opt:
    """The properties of an option besides its name, type and default."""

    help: str
    group: str  # the panel of `--help`
    metavar: str | None = None  # None: from the type
    flags: tuple[str, ...] | None = None  # None: from the name; (): no flag, only a TOML key
    row: Row = "always"
    only: tuple[str, ...] = ()  # the actions that have the flag; (): all of them
    exists: bool = False  # a path that must exist before the run starts
    default: str | None = None  # the default in words, if it depends on the machine
    repeats: bool = False  # a table that may also be an array of tables


@dataclass(frozen=True)
class ConfigOption:
    """A field of `RunConfig` as the command line, the file reader and the docs need it."""

    option: Option
    field: Field[Any]

    @property
    def name(self) -> str:
        return self.option.name

    @functools.cached_property
    def opt(self) -> Opt:
        return next(mark for mark in self.option.marks if isinstance(mark, Opt))

    @property
    def default(self) -> Any:
        """The default on this machine."""
        factory = self.field.default_factory
        return self.field.default if factory is MISSING else factory()

    @property
    def shown_default(self) -> str:
        """The default as the help and the documentation show it; empty without a default."""
        if self.opt.default is not None:
            return self.opt.default
        nothing = self.default is False or self.default in (None, (), {})
        return "" if nothing else str(self.default)

    @property
    def flags(self) -> tuple[str, ...]:
        """`("--batch-size",)`; empty for options that only a file can set."""
        derived = ("--" + self.name.replace("_", "-"),)
        return derived if self.opt.flags is None else self.opt.flags

    @property
    def metavar(self) -> str:
        """The placeholder of the value in the help."""
        return self.opt.metavar or ("TYPE" if self.choices else KINDS[self._plain][0])

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no value."""
        return self._plain is bool

    @property
    def is_list(self) -> bool:
        """Whether the flag can be given more than once."""
        return self._plain is tuple

    @property
    def is_path(self) -> bool:
        """Whether it names files or directories."""
        kinds = typing.get_args(self.option.kinds[0]) if self.is_list else (self._plain,)
        return Path in kinds or self.opt.exists

    @property
    def choices(self) -> tuple[str, ...]:
        """The values, if they can be listed."""
        return self.option.choices

    def has_row(self, is_set: bool) -> bool:
        """Whether the printed table shows it."""
        return self.opt.row == "always" or (self.opt.row == "when set" and is_set)

    def from_flag(self, value: Any) -> Any:
        """Return the typed value of text on the command line."""
        return value if self.is_switch else self._read(value, "file" if self.is_list else "text")

    def from_file(self, value: Any) -> Any:
        """Return the typed value of a value in a TOML file, which must have the right type."""
        kinds = (dict, list) if self.opt.repeats else (dict,)
        if self._plain is dict and isinstance(value, kinds):
            return value  # checked by the action that reads it
        if self.choices and type(value) in (int, float):
            value = str(value)  # trainer_precision = 32
        return self._read(value, "file")

    def _read(self, value: Any, form: Form) -> Any:
        typed, faults = self.option.read(value, form, finite=True)
        if faults:
            raise ValueError(f"{faults[0].rule}, not {redacted(value)!r}{faults[0].hint}")
        return typed

    @property
    def values(self) -> str:
        """The possible values, in words."""
        if self.choices:
            return ", ".join(self.choices)
        kind = Path if self.opt.exists and not self.is_list else self._plain
        if self.is_list and not self.is_path:
            (item,) = {*typing.get_args(self.option.kinds[0])} - {...}
            return f"list of {', '.join(typing.get_args(item)) or KINDS[item][1]}"
        return KINDS[kind][1] + bounds(self.option.marks, SIGNS)

    @functools.cached_property
    def _plain(self) -> Any:
        kind = self.option.kinds[0]
        return typing.get_origin(kind) or kind


def config_options(cls: type) -> Mapping[str, ConfigOption]:
    """Return the options of a dataclass by name, in the order of its fields."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: ConfigOption(Option(f.name, hints[f.name]), f) for f in fields(cls)}
