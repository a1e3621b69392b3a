"""Functions and classes by name: which ones a saved graph may use, and what each name means.

Names are looked up in tables of what is allowed. Only MASE's modules, and those of the classes that
the table of ops names, are imported, and nothing is called, so a file cannot run code.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.lazy import LazyModuleMixin

from chop import extensions
from chop.ir.checked import CHECKED
from chop.ir.graph.aten_names import is_of_torch_func
from chop.ir.graph.tracer import wrapped_functions
from chop.ir.operators import Overload, Overloads
from chop.ir.ops import OPS, PATHS, StandIn
from chop.ir.pure import FUNCTIONS, METHODS, NAMED, NAMES_OF, OPERATORS

TORCH_LAYERS = "torch.nn.modules."
MODULE = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*", re.ASCII)
PUBLIC = re.compile(r"[A-Za-z]\w*", re.ASCII)
USER_FILE = re.compile(r"(mase_user_\w+)_[0-9a-f]{8}")  # the hash is that of a path on one machine
SCRIPT = "__main__"  # the script or notebook that loads the graph


class ForeignName(ValueError):
    """A name that a saved graph may not use."""


def check_method(name: str) -> str:
    """Return the name of a method that a saved graph may call."""
    if name not in METHODS:
        raise ForeignName(f"the method {name!r:.60} is not one that a saved graph may call")
    return name


class SavedNames:
    """The names that one file may use: those of torch, MASE, the user's files, and of `own`."""

    def __init__(self, own: Iterable[Any] = ()) -> None:
        registered = [d for op in OPS.values() if op.pure for d in (*op.modules, *op.given)]
        self._own: dict[str, Any] = {}
        for definition in (*FUNCTIONS, *registered, *own):
            if isinstance(definition, type | FunctionType):
                self._own[_path(definition)] = definition
        self._functions: dict[str, Callable[..., Any]] = {}

    def of_function(self, fn: Any) -> str:
        """Return the name by which `function` finds `fn`."""
        for name in _spellings(fn):
            with suppress(ForeignName):
                found = self.function(name)  # compared by identity: torch.dsmm equals torch.mm
                if found is fn or found is CHECKED.get(fn):
                    return name
        if is_of_torch_func(fn):
            raise ForeignName(
                "forward() uses torch.func.vmap, which a saved graph cannot hold; compute on the "
                "whole batch instead, or keep the module that uses vmap whole with "
                "MaseGraph(model, custom_ops={'modules': {Class: {}}})"
            )
        raise ForeignName(
            f"the function {getattr(fn, '__name__', fn)!r} is not one that a saved graph may call; "
            f"if it is yours, define it at the top of a module and register it with "
            f"chop.ir.ops.define, or give it in custom_ops"
        )

    def function(self, name: str) -> Callable[..., Any]:
        if name not in self._functions:
            self._functions[name] = self._function(name)
        return self._functions[name]

    def _function(self, name: str) -> Any:
        module, _, last = name.partition(":")
        function = NAMED.get(name) or self._own.get(name) or _aten(name) or _other(module, last)
        if not callable(function) or (isinstance(function, type) and function not in FUNCTIONS):
            raise ForeignName(
                f"the function {name!r:.80} is not one that a saved graph may call; if it is "
                f"yours, import its file (on the command line: --import) or give it in custom_ops"
            )
        return CHECKED.get(function, function)

    def of_class(self, cls: type) -> str:
        """Return the name by which `module_class` finds `cls`."""
        name = _path(cls)
        with suppress(ForeignName):
            if self.module_class(name) is cls:
                return name
        raise ForeignName(
            f"the class {cls.__qualname__!r} of {cls.__module__!r} is not one that a saved graph "
            f"may use; define it at the top of a module, and give it in custom_ops unless that is "
            f"your script or an imported file"
        )

    def meant_by(self, cls: type) -> type[nn.Module]:
        """Return the class that the name of `cls` means: the layer's that `cls` stands in for."""
        meant = self.module_class(_path(cls))
        if not issubclass(cls, meant):
            raise ForeignName(f"the class {cls.__qualname__!r} has the name of another class")
        return meant

    def module_class(self, name: str) -> type[nn.Module]:
        module, _, qualname = name.partition(":")
        cls = self._own.get(name) or _torch_layers().get(name)
        cls = cls or _own_layer(module, qualname) or _users(module, qualname)
        cls = cls or _of_library(module, qualname)
        if not _is_layer(cls):
            raise ForeignName(
                f"there is no layer {name!r:.80} that a saved graph may use; if it is yours, "
                f"import its file (on the command line: --import) or give it in custom_ops"
            )
        layer_class: type[nn.Module] = cls
        return layer_class


def _is_layer(value: Any) -> bool:
    """Whether this is a class of layers that can be called directly."""
    barred = (torch.jit.ScriptModule, fx.GraphModule, LazyModuleMixin)
    return (
        isinstance(value, type) and issubclass(value, nn.Module) and not issubclass(value, barred)
    )


def is_known(cls: type) -> bool:
    """Whether a layer is part of torch or MASE."""
    home = cls.__module__
    return home.startswith(TORCH_LAYERS) or extensions.is_of_package(home)


@cache
def _torch_layers() -> dict[str, type]:
    homes = [home for name, home in sys.modules.items() if name.startswith(TORCH_LAYERS)]
    layers = [value for home in homes for value in vars(home).values() if _is_layer(value)]
    return {_path(cls): cls for cls in layers if cls.__module__.startswith(TORCH_LAYERS)}


def _own_layer(module: str, name: str) -> Any:
    """A layer that MASE defines; quantized ones are created on demand."""
    cls = _of_mase(module, name)
    return cls if isinstance(cls, type) and extensions.is_of_package(cls.__module__) else None


def _of_mase(module: str, name: str) -> Any:
    """A public attribute of one of MASE's modules."""
    if not extensions.is_of_package(module) and module.startswith("chop."):
        extensions.import_all()
    if not extensions.is_of_package(module) or not MODULE.fullmatch(module):
        return None
    try:
        home = importlib.import_module(module)
    except ImportError:
        return None
    return getattr(home, name, None) if PUBLIC.fullmatch(name) else None


def _other(module: str, name: str) -> Any:
    """A quantized function, a function of torch.fx.wrap, or one of the user."""
    fn = _of_mase(module, name)
    if isinstance(fn, StandIn):
        known = fn.target in fn.spec.functions
        return fn if known and (fn.target in FUNCTIONS or fn.target in fn.spec.given) else None
    if isinstance(fn, FunctionType) and fn.__module__ == module and _is_wrapped(fn):
        return fn
    fn = _users(module, name) if module != SCRIPT else None
    return fn if isinstance(fn, FunctionType) else None


def _is_wrapped(fn: FunctionType) -> bool:
    return (id(fn.__globals__), fn.__name__) in wrapped_functions()


def _of_library(module: str, name: str) -> Any:
    """A layer of a library that the table of ops names, if the library is installed."""
    if f"{module}.{name}" not in PATHS:
        return None
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _users(module: str, qualname: str) -> Any:
    """Something that the script or a user's file defines, not imports."""
    if not module.startswith((SCRIPT, "mase_user_")):
        return None
    for full, home in list(sys.modules.items()):
        match = USER_FILE.fullmatch(full)
        if module == (match[1] if match else full) and (match or full == SCRIPT):
            definition = _in_vars(home, qualname.split("."))
            if getattr(definition, "__module__", None) == full:
                return definition
    return None


def _in_vars(home: ModuleType, path: list[str]) -> Any:
    """Look up without getattr, as a module's __getattr__ could import anything."""
    value: Any = home
    for part in path:
        is_home = value is home or isinstance(value, type)
        value = vars(value).get(part) if is_home and PUBLIC.fullmatch(part) else None
    return value if isinstance(value, type | FunctionType) else None


def _path(definition: Any) -> str:
    module = str(definition.__module__)
    match = USER_FILE.fullmatch(module)
    return f"{match[1] if match else module}:{definition.__qualname__}"


def _spellings(fn: Any) -> Iterator[str]:
    if isinstance(fn, (Overload, Overloads)):
        yield f"torch.ops.{str(fn).removeprefix('torch.ops.')}"
        return
    known: Any = NAMES_OF
    if isinstance(fn, Hashable):
        yield from known.get(fn, ())
    if hasattr(fn, "__qualname__"):
        yield _path(fn)


def _aten(name: str) -> Any:
    """An operator of torch.ops.aten, or one overload of it, in the table of ops."""
    if not name.startswith("torch.ops.aten."):
        return None
    operator, _, overload = name.removeprefix("torch.ops.aten.").partition(".")
    packet = getattr(torch.ops.aten, operator, None) if operator in OPERATORS else None
    if not overload or packet is None:
        return packet
    if packet in CHECKED and overload != "default":  # the others compute without the checks
        return None
    return getattr(packet, overload) if overload in packet.overloads() else None


def user_definitions(custom_ops: Mapping[str, Mapping[Any, Any]] | None) -> list[Any]:
    """The classes and functions in `custom_ops`, which a file may use."""
    return [op for table in (custom_ops or {}).values() for op in table]
