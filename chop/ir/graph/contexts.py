"""Notice autocast and no_grad inside forward(), which tracing does not record."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from chop.ir.graph.trace_errors import is_library

logger = logging.getLogger(__name__)

# files of torch between the user's `with` and the methods below
BETWEEN = ("grad_mode.py", "autocast_mode.py", "_contextlib.py", "contexts.py")


@dataclass(frozen=True)
class Context:
    """A context of torch that forward() enters, and where."""

    name: str
    where: str


@contextmanager
def noticed_contexts() -> Iterator[list[Context]]:
    """Return a list that has, afterwards, the contexts that users' code entered inside."""
    found: list[Context] = []

    def noticing(cls: Any, method: str, name: str, matters: Callable[..., bool]) -> Any:
        original = vars(cls)[method]

        def noticed(self: Any, *args: Any, **kwargs: Any) -> Any:
            where = _users_place()
            if where and matters(self, *args) and Context(name, where) not in found:
                found.append(Context(name, where))
            return original(self, *args, **kwargs)

        setattr(cls, method, noticed)
        return lambda: setattr(cls, method, original)

    undo = [
        noticing(torch.autocast, "__enter__", "autocast", lambda self: self._enabled),
        noticing(torch.no_grad, "__enter__", "no_grad", lambda self: True),
        noticing(torch.inference_mode, "__enter__", "inference_mode", lambda self: self.mode),
        noticing(torch.set_grad_enabled, "__init__", "no_grad", lambda self, mode: not mode),
    ]
    try:
        yield found
    finally:
        for restore in undo:
            restore()


def _users_place() -> str:
    """Return the user's line that enters a context; "" if a library does."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.endswith(BETWEEN):
        decorated = getattr(inspect.unwrap(frame.f_locals.get("func", len)), "__code__", None)
        if decorated is not None and not is_library(decorated.co_filename):
            return f"{decorated.co_filename} line {decorated.co_firstlineno}"
        frame = frame.f_back
    if frame is None or is_library(frame.f_code.co_filename):
        return ""
    return f"{frame.f_code.co_filename} line {frame.f_lineno}"


def warn_of_contexts(found: list[Context], advice: str = "") -> None:
    """Warn once of contexts of each kind that a graph does not keep."""
    effects = {"autocast": "it computes in the dtypes of its inputs and weights"}
    for context in {context.name: context for context in reversed(found)}.values():
        effect = effects.get(context.name, "gradients flow through all of it")
        logger.warning(
            "forward() uses %s (%s), which the graph does not keep: %s%s",
            context.name,
            context.where,
            effect,
            advice if context.name != "autocast" else "",
        )
