"""Functions and classes by name: which of them a saved graph may name, and what each name means.

Nothing is imported but MASE's own modules, and nothing is called: a file cannot bring code with it.
"""

from __future__ import annotations

import builtins
import importlib
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, reduce
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from chop.ir.graph.tracer import CONSTRUCTORS
from chop.ir.ops import OPS, StandIn

# where functions are looked up, under the names that a file gives these places
SPACES: dict[str, Any] = {
    "torch": torch,
    "torch.nn.functional": F,
    "torch.special": torch.special,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch._C._nn": torch._C._nn,
    "torch.Tensor": Tensor,
    "operator": operator,
    "math": math,
    "builtins": builtins,
}
BUILTINS = frozenset({"abs", "bool", "divmod", "float", "getattr", "int", "len"}) | frozenset(
    {"max", "min", "pow", "range", "round", "sum"}
)
CALLERS = frozenset({"attrgetter", "call", "itemgetter", "methodcaller"})  # of any other function
OPERATORS = frozenset(f"__{n.strip('_')}__" for n in operator.__all__ if n not in CALLERS)
OWN = ("chop.passes.", "chop.nn.", "chop.models.", "chop.ir.")
USER_FILE = re.compile(r"(mase_user_\w+)_[0-9a-f]{8}")  # the hash is that of a path on one machine
VALUES = (Tensor, torch.Size, tuple, list, dict, str, int, float)  # whose methods a graph may call


class ForeignName(ValueError):
    """A name that a saved graph may not use."""


def is_harmless(name: str) -> bool:
    """Whether a method or attribute is public, or Python's spelling of an operator."""
    return not name.startswith("_") or name in OPERATORS


def check_method(name: str) -> str:
    """The name of a method that tensors, or the plain values around them, have."""
    if not is_harmless(name) or not any(hasattr(kind, name) for kind in VALUES):
        raise ForeignName(f"{name!r} is no method of a tensor or of a plain value")
    return name


@cache
def _overridable() -> frozenset[Any]:
    """What torch lets tensors override: its operators, and nothing that reads or writes files."""
    return frozenset(fn for fn in torch.overrides.get_testing_overrides() if callable(fn))


def _allowed(space: str, name: str, fn: Any) -> bool:
    if not callable(fn) or not is_harmless(name):
        return False
    if space == "builtins":
        return name in BUILTINS
    if space == "operator":
        return name not in CALLERS
    return (
        space == "math"
        or fn in CONSTRUCTORS
        or fn in _overridable()
        or any(fn is known for op in OPS.values() for known in op.functions)
    )


class Names:
    """What names mean in one file: torch's, MASE's, those of the user's files, and of `own`."""

    def __init__(self, own: Iterable[Any] = ()) -> None:
        registered = [fn for op in OPS.values() for fn in (*op.modules, *op.functions)]
        self._own: dict[str, Any] = {}
        for thing in (*registered, *own):
            if isinstance(thing, type | FunctionType):
                self._own[_path(thing)] = thing
        self._functions: dict[str, Any] = {}

    def of_function(self, fn: Any) -> str:
        """The name under which `function` finds `fn` again."""
        for name in _spellings(fn):
            try:
                if self.function(name) is fn:
                    return name
            except ForeignName:
                continue
        raise ForeignName(
            f"the function {getattr(fn, '__name__', fn)!r} cannot be found again by its name; "
            f"define it at the top of a module and register it with chop.ir.ops.define, or give "
            f"it in custom_ops"
        )

    def function(self, name: str) -> Callable[..., Any]:
        if name not in self._functions:
            self._functions[name] = self._function(name)
        found: Callable[..., Any] = self._functions[name]
        return found

    def _function(self, name: str) -> Any:
        if name in self._own:
            return self._own[name]
        if name.startswith("torch.ops.aten."):
            return _aten(name)
        module, colon, last = name.partition(":")
        if colon:
            return self._other_function(name, module, last)
        space, _, last = name.rpartition(".")
        fn = getattr(SPACES[space], last, None) if space in SPACES else None
        if fn is None or not _allowed(space, last, fn):
            raise ForeignName(f"{name!r} is no function that a graph may call")
        return fn

    def _other_function(self, name: str, module: str, last: str) -> Any:
        if module.startswith("chop.passes."):  # quantized functions
            fn = _attribute(_own_module(module), [last])
            if isinstance(fn, StandIn):
                return fn
        elif module.startswith("chop.models."):  # those that torch.fx.wrap keeps whole
            fn = _attribute(_own_module(module), [last])
            if isinstance(fn, FunctionType) and _is_wrapped(fn):
                return fn
        elif USER_FILE.fullmatch(f"{module}_00000000"):
            fn = next((vars(m).get(last) for m in _modules(module)), None)
            if isinstance(fn, FunctionType):
                return fn
        raise ForeignName(
            f"{name!r} is no function that a graph may call; if it is yours, import its file "
            f"(--import) or give it in custom_ops"
        )

    def of_class(self, cls: type) -> str:
        """The name under which `module_class` finds `cls` again."""
        name = _path(cls)
        try:
            if self.module_class(name) is cls:
                return name
        except ForeignName:
            pass
        raise ForeignName(
            f"the class {cls.__qualname__!r} of {cls.__module__!r} cannot be found again by its "
            f"name; define it at the top of a module"
        )

    def meant_by(self, cls: type) -> type[nn.Module]:
        """The class that the name of `cls` means: that of the layer which `cls` stands in for."""
        found = self.module_class(_path(cls))
        if not issubclass(cls, found):
            raise ForeignName(f"the class {cls.__qualname__!r} bears the name of another")
        return found

    def module_class(self, name: str) -> type[nn.Module]:
        cls = self._own.get(name)
        if cls is None:
            module, _, qualname = name.partition(":")
            cls = _class_in(module, qualname.split("."))
        barred = torch.jit.ScriptModule | fx.GraphModule
        if not isinstance(cls, type) or not issubclass(cls, nn.Module) or issubclass(cls, barred):
            raise ForeignName(
                f"there is no layer {name!r} here; if it is yours, import its file (--import) "
                f"before loading"
            )
        return cls


def _class_in(module: str, path: list[str]) -> Any:
    if module.startswith(OWN):
        return _attribute(_own_module(module), path)
    if module.startswith("torch.") and not module.startswith(("torch.nn.", "torch.ao.nn.")):
        return None
    return next((_in_vars(there, path) for there in _modules(module)), None)


def _in_vars(thing: Any, path: list[str]) -> Any:
    """Without getattr, as a module's own __getattr__ may import whatever it likes."""
    for part in path:
        thing = vars(thing).get(part) if hasattr(thing, "__dict__") else None
    return thing


def _is_wrapped(fn: FunctionType) -> bool:
    wrapped = torch.fx._symbolic_trace._wrapped_fns_to_patch
    return (id(fn.__globals__), fn.__name__) in wrapped


def _own_module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _attribute(thing: Any, path: list[str]) -> Any:
    return reduce(lambda owner, part: getattr(owner, part, None), path, thing)


def _modules(name: str) -> Iterator[ModuleType]:
    """The imported module of that name; a user's file goes by its name without its path."""
    if name in sys.modules:
        yield sys.modules[name]
    for full, module in list(sys.modules.items()):
        match = USER_FILE.fullmatch(full)
        if match and match[1] == name:
            yield module


def _path(thing: Any) -> str:
    module = str(thing.__module__)
    match = USER_FILE.fullmatch(module)
    return f"{match[1] if match else module}:{thing.__qualname__}"


def _spellings(fn: Any) -> Iterator[str]:
    if isinstance(fn, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        yield f"torch.ops.{str(fn).removeprefix('torch.ops.')}"
        return
    name = str(getattr(fn, "__name__", ""))
    for space, module in SPACES.items():
        if getattr(module, name, None) is fn:
            yield f"{space}.{name}"
    if hasattr(fn, "__qualname__"):
        yield _path(fn)


def _aten(name: str) -> Any:
    *path, last = name.removeprefix("torch.ops.aten.").split(".")
    names = [*path, last]
    if "file" in names[0] or not all(re.fullmatch(r"\w+", part) for part in names):
        raise ForeignName(f"{name!r} is no function that a graph may call")
    fn = _attribute(torch.ops.aten, names)
    if not isinstance(fn, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        raise ForeignName(f"this torch has no operator {name!r}")
    return fn


def own_of(custom_ops: Mapping[str, Mapping[Any, Any]] | None) -> list[Any]:
    """The classes and functions in `custom_ops`, which a file may name."""
    return [thing for things in (custom_ops or {}).values() for thing in things]
