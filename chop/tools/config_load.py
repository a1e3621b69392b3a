"""TOML files, in which "NA" stands for None, and the table of options and their sources."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from chop.system.files import write_whole

NA = "NA"
HEADERS = ("Name", "Default", "Config. File", "Manual Override", "Effective")
MAX_WIDTH = 24
DEEPEST = 100  # levels of nested tables and lists
GRAY = "\033[38;5;8m{}\033[0m"


def load_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML file; "NA" anywhere in it means None."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        _check_limits(table)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {_with_line(error, Path(path))}") from error
    except RecursionError as error:
        raise ValueError(
            f"{path}: tables and lists are nested more than {DEEPEST} levels deep; flatten them"
        ) from error
    except (OverflowError, ValueError) as error:  # Python refuses thousands of digits
        raise ValueError(
            f"{path}: an integer exceeds 64 bits; write a smaller one, or a float such as 1e30"
        ) from error
    return {key: convert_str_na_to_none(value) for key, value in table.items()}


def _with_line(error: ValueError, path: Path) -> str:
    """Return what is wrong with a TOML file, and in which line of it."""
    if isinstance(error, UnicodeDecodeError):
        line = error.object[: error.start].count(b"\n") + 1
        return f"it is not UTF-8 text (at line {line})"
    last = len(path.read_text(encoding="utf-8").splitlines())
    return str(error).replace("(at end of document)", f"(at line {last}, the end of the file)")


def _check_limits(value: Any, depth: int = 0) -> None:
    """Refuse nesting that would exhaust the stack, and integers beyond the range of TOML."""
    if depth > DEEPEST:
        raise RecursionError
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_limits(item, depth + 1)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise OverflowError


def save_config(config: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a TOML file and its parent directories; None is written as "NA"."""
    import tomlkit

    write_whole(Path(path), tomlkit.dumps(convert_none_to_str_na(config)))


def convert_str_na_to_none(value: Any) -> Any:
    """Return a copy in which every "NA" is None.

    >>> convert_str_na_to_none({"name": "NA", "widths": [8, "NA"]})
    {'name': None, 'widths': [8, None]}
    """
    return _replaced(value, NA, None)


def convert_none_to_str_na(value: Any) -> Any:
    """Return a copy in which every None is "NA", as TOML has no null.

    >>> convert_none_to_str_na({"name": None, "size": (1, None)})
    {'name': 'NA', 'size': (1, 'NA')}
    """
    return _replaced(value, None, NA)


def _replaced(value: Any, old: object, new: object) -> Any:
    if isinstance(value, Mapping):
        return {key: _replaced(item, old, new) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_replaced(item, old, new) for item in value)
    return new if isinstance(value, type(old)) and value == old else value


def post_parse_load_config(
    args: argparse.Namespace, defaults: Mapping[str, Any]
) -> argparse.Namespace:
    """Merge defaults, the file `args.config` and the parsed arguments, and print their table.

    An argument overrides the file if it differs from its default. With a parser that has
    `argument_default=argparse.SUPPRESS`, it also does if it equals its default.
    """
    parsed = vars(args)
    file = load_config(parsed["config"]) if parsed.get("config") else None
    manual = {key: value for key, value in parsed.items() if value != defaults.get(key)}
    names = [name for name in defaults if name != "config"]
    known = {key: value for key, value in (file or {}).items() if key in names}
    effective = {**defaults, **parsed, **known, **manual}
    print(option_table(names, defaults, file, manual, effective))  # noqa: T201 -- the labs' helper
    return argparse.Namespace(**effective)


def option_table(
    names: Iterable[str],
    defaults: Mapping[str, Any],
    file: Mapping[str, Any] | None,
    manual: Mapping[str, Any],
    effective: Mapping[str, Any],
) -> str:
    """Return a table with a row per option; overridden values are gray on a terminal."""
    from tabulate import tabulate

    overridden = GRAY if _in_colour() else "{}"

    def cells(name: str) -> list[str]:
        in_file, is_manual = file is not None and name in file, name in manual
        style = overridden if in_file or is_manual else "{}"
        row = [_cell(name), _cell(defaults[name], style)]
        if file is not None:
            style = overridden if is_manual else "{}"
            row.append(_cell(file[name], style) if in_file else "")
        return [*row, _cell(manual[name]) if is_manual else "", _cell(effective[name])]

    headers = [header for header in HEADERS if file is not None or header != "Config. File"]
    align = ("left", *["center"] * (len(headers) - 1))
    rows = [cells(name) for name in names]
    return tabulate(rows, headers, "pretty", colalign=align, disable_numparse=True)


def _cell(value: Any, style: str = "{}") -> str:
    """Wrap a value to `MAX_WIDTH`; tabulate's wrapping would turn the text False into True."""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return "\n".join(style.format(line) for line in textwrap.wrap(text, MAX_WIDTH))


def _in_colour() -> bool:
    """Whether to print colours: on a terminal, unless NO_COLOR or FORCE_COLOR decides."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()
