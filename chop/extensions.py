"""Registration of what lower rooms must not import: layers, converters of graphs, methods."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

IMPORTERS: list[Callable[[], object]] = []  # called when something is not registered yet
METHODS: list[str] = []  # packages of methods
_packages: dict[str, bool] = {}  # prefix of modules: whether passes put their layers into networks
_converters: dict[str, Callable[[Any], Any]] = {}


def register(
    package: str,
    *,
    transformed: bool = False,
    **converters: Callable[[Any], Any],
) -> None:
    """Allow the layers of a package in saved graphs, and add what it knows of graphs.

    `transformed` means that passes make the layers; `converters` convert a graph, by their names.
    """
    _packages[f"{package}."] = transformed
    _converters.update(converters)


def add_methods(package: str) -> None:
    """Let the packages in a package add to rooms, each by modules named after the rooms.

    Call it before `chop.passes`, `chop.nn.modules` and `chop.tools.utils` are imported: they list
    the names of methods once. See docs/add_a_method.md.
    """
    if package not in METHODS:
        METHODS.append(package)
    register(package, transformed=True)


def modules_of_methods(room: str) -> dict[str, Path]:
    """Return the modules by which methods add to a room, with their files."""
    return {
        f"{package.__name__}.{file.parent.name}.{room}": file
        for package in map(importlib.import_module, METHODS)
        for folder in map(Path, package.__path__)
        for file in sorted(folder.glob(f"*/{room}.py"))
        if file.with_name("__init__.py").is_file() and file.parent.name.isidentifier()
    }


def is_of_method(module: str) -> bool:
    """Whether a module is of a method."""
    return module.startswith(tuple(f"{package}." for package in METHODS))


def is_of_package(module: str, *, transformed: bool = False) -> bool:
    """Whether a package has registered the layers of this module, or those made by passes."""
    prefixes = (prefix for prefix, made in _packages.items() if made or not transformed)
    return module.startswith(tuple(prefixes))


def import_all() -> None:
    """Import the packages that register themselves."""
    while IMPORTERS:
        IMPORTERS.pop()()


def convert(graph: Any, name: str) -> Any:
    """Return what the registered converter of this name makes of a graph."""
    if name not in _converters:
        import_all()
    return _converters[name](graph)
