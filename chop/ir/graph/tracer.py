"""How a model becomes an fx graph, and what to say when it cannot."""

from __future__ import annotations

import linecache
import math
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import fx, nn

from chop.registry import UnknownName

# fx cannot see these when their arguments are traced values: nothing in them asks a tensor
CONSTRUCTORS: tuple[Callable[..., Any], ...] = (
    torch.arange,
    torch.empty,
    torch.eye,
    torch.full,
    torch.linspace,
    torch.ones,
    torch.rand,
    torch.randn,
    torch.zeros,
)
# frames of these are not the user's code
LIBRARIES = (
    str(Path(torch.__file__).parent) + os.sep,
    str(Path(__file__).parents[1]) + os.sep,
    "<eval_with_key>",
    "<frozen",
)


class Leaf:
    """Mixin: the tracer keeps modules of this class whole."""


class TraceError(RuntimeError):
    """A model that fx cannot trace: where, why, and what to do."""


class MaseTracer(fx.Tracer):
    """fx's tracer, with leaves of yours, frozen arguments that vanish, and clear errors."""

    def __init__(
        self,
        custom_leaf_modules: tuple[ModuleType, ...] = (),
        custom_leaf_layers: tuple[type[nn.Module], ...] = (),
        custom_leaf_functions: tuple[Callable[..., Any], ...] = (),
        param_shapes_constant: bool = False,
    ) -> None:
        """Keep whole: calls into `custom_leaf_modules` (Python modules), modules of the classes
        `custom_leaf_layers`, and calls of `custom_leaf_functions`."""
        self.custom_leaf_modules = tuple(dict.fromkeys(custom_leaf_modules))
        self.custom_leaf_layers = tuple(dict.fromkeys(custom_leaf_layers))
        self.custom_leaf_functions = tuple(dict.fromkeys(custom_leaf_functions))
        super().__init__(
            (math, *self.custom_leaf_modules),  # type: ignore[arg-type]
            (*CONSTRUCTORS, *self.custom_leaf_functions),
            param_shapes_constant,
        )
        self._autowrap_search.append(torch)  # where models find torch.arange
        self._frozen: Mapping[str, Any] = {}
        self._where: list[tuple[str, nn.Module]] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (Leaf, *self.custom_leaf_layers)) or super().is_leaf_module(
            m, module_qualified_name
        )

    def trace(
        self,
        root: nn.Module | Callable[..., Any],
        concrete_args: Mapping[str, Any] | None = None,
    ) -> fx.Graph:
        """The graph of `root`, in which the arguments of `concrete_args` are constants."""
        self._frozen = concrete_args or {}
        self._where = [("", root)] if isinstance(root, nn.Module) else []
        try:
            return super().trace(root)
        except UnknownName:
            raise
        except Exception as error:
            raise TraceError(self._explain(error)) from error

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        # fx keeps a frozen argument as an input and asserts its value; here it is simply gone
        fn, args = super().create_args_for_root(root_fn, is_module, concrete_args)
        inputs = {a.node.target: i for i, a in enumerate(args) if isinstance(a, fx.Proxy)}
        for name, value in self._frozen.items():
            if name not in inputs:
                raise UnknownName("forward argument in cf_args", name, sorted(map(str, inputs)))
            self.graph.erase_node(args[inputs[name]].node)
            args[inputs[name]] = value
        return fn, args

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        self._where.append((self.path_of_module(m), m))
        result = super().call_module(m, forward, args, kwargs)
        self._where.pop()  # not reached on an error, so that the innermost module is known
        return result

    def _explain(self, error: Exception) -> str:
        name, module = self._where[-1] if self._where else ("", None)
        cls = type(module).__name__
        whose = f"module {name!r} ({cls})" if name else f"{cls}.forward"
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return (
            f"cannot trace {whose}{_users_line(error)}: {reason}. "
            f"Freeze the argument that decides with MaseGraph(model, cf_args={{name: value}}), "
            f'keep the module whole with custom_ops={{"modules": {{{cls}: {{}}}}}}, '
            f"or use module passes, which work on the model itself"
        )


def _users_line(error: Exception) -> str:
    """`, file.py line 12: if x.sum() > 0:` of the innermost frame that is not a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    if not users:
        return ""
    frame = users[-1]
    text = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
    return f", {frame.filename} line {frame.lineno}: `{text}`"
