"""Import paths of the labs and of earlier versions, which lead to where things are now."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

SEARCH = "chop.actions.search"
LAB_CLASSES = f"{SEARCH}.compat.labs"
# modules that were renamed; other modules of a renamed package kept their names
MODULES = {
    "families": "metrics.stackable",
    "goals": "metrics.objectives",
    "labs": "compat.labs",
    "outcome": "metrics.outcome",
    "parent": "spec.parent",
    "problem": "compat.labs",
    "report": "results.page",
    "rungs": "metrics.rungs",
    "runners": "metrics",
    "runners.labs": "compat.lab_runners",
    "runners.stubs": "metrics.deprecated",
    "search_space": "space",
    "search_space.in_place": "space.reconfigure",
    "search_space.parts": "space.pass_spaces",
    "settings": "spec.settings",
    "strategies": "samplers",
    "worker": "run.worker",
}
CLASSES = {"Quest": "SamplerContext", "Scene": "RunnerContext", "Together": "PopulationRunner"}


def present_path(old: str) -> str | None:
    """Return the present module of an old path, None for other paths."""
    name = old.removeprefix(f"{SEARCH}.")
    package, _, module = name.rpartition(".")
    if name in MODULES:
        return f"{SEARCH}.{MODULES[name]}"
    return f"{SEARCH}.{MODULES[package]}.{module}" if package in MODULES else None


class OldPaths(MetaPathFinder, Loader):
    """Makes a module for each old path, with the names of the present one and the labs' classes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{SEARCH}.") or present_path(fullname) is None:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        present = importlib.import_module(str(present_path(module.__name__)))

        def find(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            name = CLASSES.get(name, name)
            if hasattr(present, name):
                return getattr(present, name)
            labs = importlib.import_module(LAB_CLASSES)
            if name in labs.__all__:
                return getattr(labs, name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        vars(module)["__getattr__"] = find


def install() -> None:
    """Make the old paths importable; modules that exist have precedence."""
    if not any(isinstance(finder, OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(OldPaths())
