"""Import paths of the labs and of other versions of MASE, and where their names are now."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

SEARCH = "chop.actions.search"
PRUNING = "chop.passes.graph.analysis.pruning"
VERIFY = "chop.passes.graph.analysis.verify"
TOY = "chop.models.toy"

# path: the modules that have its names, in the order in which they are asked; other modules of a
# renamed package kept their names
MODULES: dict[str, tuple[str, ...]] = {
    f"{SEARCH}.search_space": (f"{SEARCH}.space", f"{SEARCH}.compat.labs"),
    f"{SEARCH}.strategies": (f"{SEARCH}.samplers", f"{SEARCH}.compat.labs"),
    "chop.passes.graph.transforms.lora": ("chop.methods.lora.passes", "chop.methods.lora.layers"),
    "chop.models.toys": (TOY,),
    "chop.models.toys.toy": (TOY,),
    "chop.models.toys.toy_custom_fn": (TOY,),
    f"{TOY}.toy": (TOY,),
    f"{TOY}.toy_custom_fn": (TOY,),
    "chop.models.utils": ("chop.models", "chop.models.info", "chop.models.base"),
    "chop.passes.module.transforms": ("chop.passes.module",),
    f"{PRUNING}.calculate_natural_sparsity": (PRUNING,),
    f"{PRUNING}.calculate_sparsity": (PRUNING,),
    f"{PRUNING}.hook_inspector": ("chop.passes.graph.analysis.hook_inspection",),
    f"{VERIFY}.verify": (VERIFY,),
}


def present_paths(path: str) -> tuple[str, ...]:
    """Return the modules that have the names of a former path, none for other paths."""
    package, _, module = path.rpartition(".")
    if path in MODULES or package not in MODULES:
        return MODULES.get(path, ())
    first, *others = MODULES[package]
    kept = f"{first}.{module}"
    return (kept, *others) if importlib.util.find_spec(kept) is not None else ()


class Aliases:  # importlib.abc would import half of Python before sys.path is cleaned
    """Makes a module for each former path, which finds its names in the present modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("chop.") or not present_paths(fullname):
            return None
        loader: Any = self  # mypy knows the classes of importlib.abc only
        return ModuleSpec(fullname, loader, is_package=True)

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, for an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        first, *others = present_paths(module.__name__)
        present = importlib.import_module(first)

        def modules() -> Iterator[ModuleType]:
            yield present
            yield from map(importlib.import_module, others)

        def find(name: str) -> Any:
            if name == "__all__":
                return _public_names(present)
            if not name.startswith("__"):
                for source in modules():
                    if hasattr(source, name):
                        return getattr(source, name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        vars(module).update(
            __doc__=present.__doc__, __getattr__=find, __dir__=lambda: _public_names(present)
        )


def _public_names(module: ModuleType) -> list[str]:
    names = getattr(module, "__all__", None) or [n for n in dir(module) if not n.startswith("_")]
    return list(names)


def install() -> None:
    """Make the former paths importable; modules that exist have precedence."""
    if not any(isinstance(finder, Aliases) for finder in sys.meta_path):
        sys.meta_path.append(Aliases())
