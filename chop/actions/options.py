"""What an option is: one field is a flag, a TOML key, a default, a help text and a table row."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from chop.options import Form, Option, bounds
from chop.redaction import redacted

SIGNS = {"ge": "≥", "gt": ">"}
Row = Literal["always", "when set", "never"]
# how a type is called in the help and in the documentation
KINDS: dict[Any, tuple[str, str]] = {
    int: ("NUM", "integer"),
    float: ("NUM", "number"),
    str: ("NAME", "text"),
    Path: ("PATH", "path"),
    tuple: ("FILE", "paths"),
}


class ConfigError(ValueError):
    """Options that cannot be run with: wrong usage, exit code 2."""

    def __init__(self, *problems: str) -> None:
        head = f"{len(problems)} problems:\n  " if len(problems) > 1 else ""
        super().__init__(head + "\n  ".join(problems))


@dataclass(frozen=True)
class Opt:
    """What a field says about itself, besides its name, type and default."""

    help: str
    group: str  # the panel of `--help`
    metavar: str | None = None  # None: after the type
    flags: tuple[str, ...] | None = None  # None: after the name; (): no flag, only a TOML key
    row: Row = "always"
    only: tuple[str, ...] = ()  # the actions that have the flag; (): all of them
    exists: bool = False  # a path that has to be there before anything starts
    default: str | None = None  # the default in words, where it depends on the machine
    repeats: bool = False  # a table that may also be an array of tables


@dataclass(frozen=True)
class ConfigOption:
    """A field with everything that the command line, the file reader and the docs want to know."""

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
        """The default of this machine."""
        factory = self.field.default_factory
        return self.field.default if factory is MISSING else factory()

    @property
    def shown_default(self) -> str:
        """The default as the help and the documentation show it; empty where there is none."""
        if self.opt.default is not None:
            return self.opt.default
        nothing = self.default is False or self.default in (None, (), {})
        return "" if nothing else str(self.default)

    @property
    def flags(self) -> tuple[str, ...]:
        """`("--batch-size",)`; empty for what only a file can say."""
        derived = ("--" + self.name.replace("_", "-"),)
        return derived if self.opt.flags is None else self.opt.flags

    @property
    def metavar(self) -> str:
        """What stands for the value in the help."""
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
    def is_table(self) -> bool:
        """Whether it is a table of the TOML file."""
        return self._plain is dict

    @property
    def is_path(self) -> bool:
        """Whether it names files or folders."""
        return self._plain in (Path, tuple) or self.opt.exists

    @property
    def choices(self) -> tuple[str, ...]:
        """The values there are, where they can be listed."""
        return self.option.choices

    def has_row(self, given: bool) -> bool:
        """Whether the printed table shows it."""
        return self.opt.row == "always" or (self.opt.row == "when set" and given)

    def from_flag(self, value: Any) -> Any:
        """The typed value of what was written on the command line."""
        return value if self.is_switch else self._read(value, "file" if self.is_list else "text")

    def from_file(self, value: Any) -> Any:
        """The typed value of what stands in a TOML file, whose types are taken at their word."""
        kinds = (dict, list) if self.opt.repeats else (dict,)
        if self.is_table and isinstance(value, kinds):
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
        """What can be given, in words."""
        if self.choices:
            return ", ".join(self.choices)
        if self.is_switch:
            return "switch"
        if self.is_table:
            return "table"
        kind = Path if self.opt.exists and not self.is_list else self._plain
        return KINDS[kind][1] + bounds(self.option.marks, SIGNS)

    @functools.cached_property
    def _plain(self) -> Any:
        kind = self.option.kinds[0]
        return typing.get_origin(kind) or kind


def config_options(cls: type) -> Mapping[str, ConfigOption]:
    """Return the options of a dataclass by name, in the order of its fields."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: ConfigOption(Option(f.name, hints[f.name]), f) for f in fields(cls)}
