"""How far the adder graphs of a layer are: ops say what they have done, a bar shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["adders_done", "on_adders"]

_listener: ContextVar[Callable[[int], object] | None] = ContextVar("listener", default=None)


@contextmanager
def on_adders(listener: Callable[[int], object]) -> Iterator[None]:
    """Call `listener` with the number of adders whenever some are done, inside the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def adders_done(count: int) -> None:
    """Tell that the graph of about `count` more adders is known."""
    if (listener := _listener.get()) is not None:
        listener(count)
