"""Notice autocast, no_grad, draws and assignments in forward(), which tracing does not record."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from chop.ir.graph.trace_errors import is_library

logger = logging.getLogger(__name__)

RANDOM = "random numbers"
BUFFERS = "assignments to buffers"
NUMBERS = "assignments to numbers"
EFFECTS = {
    "autocast": "it computes in the dtypes of its inputs and weights",
    RANDOM: "they are drawn once, and are constants of it",
    BUFFERS: "they keep their values",
    NUMBERS: "they keep their values",
}
KEPT_BY_NEITHER = ("autocast", NUMBERS)  # by torch.fx nor torch.export
# files between the user's `with` and the methods below: torch's, and this one
TORCHS = ("grad_mode.py", "autocast_mode.py", "_contextlib.py")


def _is_between(filename: str) -> bool:
    of_torch = filename.startswith(str(Path(torch.__file__).parent))
    return filename == __file__ or (of_torch and filename.endswith(TORCHS))


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
            where, result = _users_place(), original(self, *args, **kwargs)
            if where and matters(self, *args) and Context(name, where) not in found:
                found.append(Context(name, where))
            return result

        setattr(cls, method, noticed)
        return lambda: setattr(cls, method, original)

    undo = [
        noticing(torch.autocast, "__enter__", "autocast", _enables),
        noticing(torch.no_grad, "__enter__", "no_grad", lambda self: True),
        noticing(torch.inference_mode, "__enter__", "inference_mode", lambda self: self.mode),
        noticing(torch.set_grad_enabled, "__init__", "no_grad", lambda self, mode: not mode),
    ]
    try:
        yield found
    finally:
        for restore in undo:
            restore()


@contextmanager
def noticed_by_fx() -> Iterator[list[Context]]:
    """Notice contexts, and random numbers that torch.fx draws, which become constants."""
    state = torch.get_rng_state()
    with noticed_contexts() as found:
        yield found
    if not torch.equal(state, torch.get_rng_state()):
        found.append(Context(RANDOM, "of a fixed shape"))


def numbers_of(model: object) -> dict[str, Any]:
    """Return the Python numbers that modules have as attributes, by dotted name."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, module in _modules(model)
        for name, value in vars(module).items()
        if type(value) in (int, float, bool)
    }


def assignments(model: object, numbers: Mapping[str, Any]) -> list[Context]:
    """Return what a forward() that torch.fx has just run assigned: buffers, and other `numbers`."""
    buffers = [
        f"{path}.{name}".lstrip(".")
        for path, module in _modules(model)
        for name, value in vars(module)["_buffers"].items()
        if isinstance(value, fx.Proxy)
    ]
    now = numbers_of(model)
    changed = [name for name, value in numbers.items() if now.get(name, value) != value]
    found = {BUFFERS: buffers, NUMBERS: changed}
    return [Context(kind, ", ".join(names)) for kind, names in found.items() if names]


def _modules(model: object) -> list[tuple[str, nn.Module]]:
    named = model.named_modules() if isinstance(model, nn.Module) else ()
    return [(path, m) for path, m in named if not isinstance(m, torch.jit.ScriptModule)]


def _enables(autocast: torch.autocast) -> bool:
    """Whether an autocast that was entered is not one with `enabled=False`."""
    return torch.is_autocast_enabled(autocast.device)


def _users_place() -> str:
    """Return the user's line that enters a context; "" if a library does."""
    frame: Any = sys._getframe(2)
    while frame is not None and _is_between(frame.f_code.co_filename):
        decorated = getattr(inspect.unwrap(frame.f_locals.get("func", len)), "__code__", None)
        if decorated is not None and not is_library(decorated.co_filename):
            return f"{decorated.co_filename} line {decorated.co_firstlineno}"
        frame = frame.f_back
    if frame is None or is_library(frame.f_code.co_filename):
        return ""
    return f"{frame.f_code.co_filename} line {frame.f_lineno}"


def warn_of_contexts(found: list[Context], advice: str = "") -> None:
    """Warn once of contexts of each kind that a graph does not keep."""
    for context in {context.name: context for context in reversed(found)}.values():
        effect = EFFECTS.get(context.name, "gradients flow through all of it")
        logger.warning(
            "forward() uses %s (%s), which the graph does not keep: %s%s",
            context.name,
            context.where,
            effect,
            "" if context.name in KEPT_BY_NEITHER else advice,
        )
