"""Notice what forward() decides by sizes that torch.export takes to be two or more.

torch.export records a decision as an assumption on the inputs, but not one such as
`x.shape[0] == 1`: it takes free sizes to be at least two, and then this has one answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.ir.graph.trace_errors import is_installed, is_library

Size = tuple[int, int]  # the input's place among the tensors, and the dimension


@dataclass(frozen=True)
class Decision:
    """A condition on sizes in a model's code, what it was, and where."""

    condition: torch.SymBool
    outcome: bool
    file: str
    line: int

    @property
    def where(self) -> str:
        return f"{Path(self.file).name} line {self.line}"

    @property
    def is_users(self) -> bool:
        """Whether it is not of an installed package."""
        return not is_installed(self.file)

    def changes(self, sizes: dict[Any, int]) -> bool:
        """Return whether the outcome is another one for these sizes, by their symbols."""
        condition: Any = self.condition.node.expr
        outcome = condition.subs(sizes)
        return bool(outcome.is_Boolean) and not outcome.free_symbols and outcome != self.outcome


@contextmanager
def noticed_decisions(is_ignored: Callable[[], bool]) -> Iterator[list[Decision]]:
    """Return a list that has, afterwards, the decisions of models by free sizes."""
    found: list[Decision] = []

    def noticing(method: str) -> Any:
        original = vars(torch.SymBool)[method]

        def noticed(self: torch.SymBool) -> Any:
            outcome = original(self)
            place = None if is_ignored() else _place()
            if place:
                found.append(Decision(self, bool(outcome), *place))
            return outcome

        setattr(torch.SymBool, method, noticed)
        return lambda: setattr(torch.SymBool, method, original)

    undo = [noticing("__bool__"), noticing("__int__")]
    try:
        yield found
    finally:
        for restore in undo:
            restore()


def _place() -> tuple[str, int] | None:
    """Return the file and line that decides; None if torch does, as in its kernels."""
    frame: Any = inspect.currentframe()
    # the methods of this file, and torch's of a size, such as `bool(size)`
    while frame is not None and frame.f_code.co_filename in (__file__, torch.__file__):
        frame = frame.f_back
    if frame is None or is_library(frame.f_code.co_filename):
        return None
    return frame.f_code.co_filename, frame.f_lineno


def changed_for_one(
    decisions: Sequence[Decision], shapes: Sequence[Sequence[Any]]
) -> dict[Size, Decision]:
    """Return the free sizes for which a decision changes if they are one, with that decision.

    Sizes that are always equal are returned once, and decisions of users first.
    """
    free: dict[Any, Size] = {}
    hints: dict[Any, int] = {}
    for place, shape in enumerate(shapes):
        for dim, each in enumerate(shape):
            if isinstance(each, torch.SymInt):
                free.setdefault(each.node.expr, (place, dim))
                hints[each.node.expr] = each.node.hint
    changed: dict[Size, Decision] = {}
    for decision in sorted(decisions, key=lambda decision: not decision.is_users):
        for symbol in decision.condition.node.expr.free_symbols & free.keys():
            if decision.changes(hints | {symbol: 1}):
                changed.setdefault(free[symbol], decision)
    return changed


def same_size(one: Any, other: Any) -> bool:
    """Return whether two free sizes are always equal."""
    sizes = isinstance(one, torch.SymInt) and isinstance(other, torch.SymInt)
    return sizes and bool(one.node.expr == other.node.expr)


def with_ones(
    tensors: Sequence[Tensor], shapes: Sequence[Sequence[Any]], size: torch.SymInt
) -> list[Tensor]:
    """Return the first parts of tensors, in which the free size `size` is one."""
    parts = []
    for tensor, shape in zip(tensors, shapes, strict=True):
        for dim, each in enumerate(shape):
            if isinstance(each, torch.SymInt):
                count = each.node.expr.subs({size.node.expr: 1})
                tensor = tensor.narrow(dim, 0, int(count)) if count.is_Integer else tensor
        parts.append(tensor)
    return parts
