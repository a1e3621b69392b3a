"""Packages that import their names when they are used."""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chop import extensions

_HOMES: dict[str, dict[str, str]] = {}  # package: its names, and the modules that have them


def importer(package: str, file: str, room: str | None = None) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose file has imports for type checkers only.

    It imports what the file imports below `if TYPE_CHECKING:`, where `*` stands for the names of
    another package of this kind, the modules of the package, and the public names of the modules
    by which methods add to `room`.
    """
    homes = _HOMES[package] = dict(_imported(Path(file)))
    if room:
        homes |= names_of_methods(room)

    def __getattr__(name: str) -> Any:
        home = homes.get(name, package)
        if home != package:
            value = getattr(importlib.import_module(home), name)
            setattr(sys.modules[package], name, value)
            return value
        module = f"{package}.{name}"
        if name.startswith("_") or importlib.util.find_spec(module) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(module)

    return __getattr__


def homes_of(package: str) -> dict[str, str]:
    """Return the names of a package of this kind with the modules that have them."""
    importlib.import_module(package)
    return _HOMES[package]


@functools.cache
def names_of_methods(room: str) -> dict[str, str]:
    """Return the names in `__all__` of the modules by which methods add to a room, with these."""
    homes: dict[str, str] = {}
    for module, file in extensions.modules_of_methods(room).items():
        for line in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "__all__":
                homes |= dict.fromkeys(ast.literal_eval(line.value), module)
    return homes


def _imported(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the names that a file imports for type checkers, with their modules."""
    for block in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for line in block.body:
                if isinstance(line, ast.ImportFrom) and line.module:
                    if line.names[0].name == "*":
                        yield from homes_of(line.module).items()
                    else:
                        yield from ((name.name, line.module) for name in line.names)
