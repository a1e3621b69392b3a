"""What packages above the graph add to it: each registers here when it is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

IMPORTERS: list[Callable[[], object]] = []  # called when something is not registered yet
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
