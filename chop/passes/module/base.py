"""Passes on an untraced nn.Module: `(module, pass_args) -> (module, info)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from chop.passes.base import GraphPass, Info, Kind, PassArgsError
from chop.registry import Registry

PASSES: Registry[ModulePass] = Registry("module pass", "chop.passes.module", for_users=True)


class ModulePass(GraphPass):
    """A registered pass on modules; it returns a module, as the root may be replaced."""

    subject = "module"

    def __call__(self, graph: Any, pass_args: Any = None, **options: Any) -> tuple[Any, Info]:
        checked = self.checked(pass_args, options)
        if not isinstance(graph, nn.Module):
            raise PassArgsError(
                f"module pass {self.name!r} works on an nn.Module, not {type(graph).__name__}"
            )
        return self.fn(graph, **checked)  # type: ignore[return-value]


def module_pass(name: str, kind: Kind) -> Callable[[Callable[..., Any]], ModulePass]:
    """Register `fn(module, *, option=default) -> (module, info)` as the module pass `name`."""

    def wrap(fn: Callable[..., Any]) -> ModulePass:
        return PASSES.register(name)(ModulePass(fn, name, kind, ()))

    return wrap
