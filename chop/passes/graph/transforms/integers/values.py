"""What a node of the quantised graph has become: codes, or a float that a reader will round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from chop.integers import QuantizeInput, Scale, Word
from chop.passes.base import PassArgsError

CodesOf = Callable[[Tensor], Tensor]  # from floats to codes, element by element or by channel


@dataclass(frozen=True)
class Known:
    """Codes: a node of the integer graph."""

    name: str


# makes tables of a function, under a name and with the scale of the codes that it returns
Tabled = Callable[[str, CodesOf, Scale], Known]


@dataclass(frozen=True)
class Constant:
    """A tensor of the model, or a number in its code."""

    tensor: Tensor


@dataclass(frozen=True)
class Unrounded:
    """A float value, such as an input or a sigmoid; each format that reads it gets codes.

    `rounded` returns the node with codes of a word. `exact` returns one with the unrounded value on
    a finer grid, where there is one; `what` describes the value in messages. `function` is what it
    is a function of, element by element, and that function. `tabled` returns the node with codes
    of any function of single values, where these are few enough for tables.
    """

    rounded: Callable[[Word], Known]
    what: str
    exact: Callable[[], Known] | None = None
    function: tuple[Known, Callable[[Tensor], Tensor]] | None = None
    tabled: Tabled | None = None
    by_element: bool = False  # whether each element may have its own format
    cached: dict[Any, tuple[Known, Word]] = field(default_factory=dict)

    def in_word(self, word: Word) -> Known:
        """Return the codes of a word; each is made once."""
        if word.key not in self.cached:
            self.cached[word.key] = (self.rounded(word), word)
        return self.cached[word.key][0]


def tabled_value(
    tabled: Tabled,
    name: str,
    what: str,
    exact: Callable[[], Known] | None = None,
) -> Unrounded:
    """Return a float value that readers round by tables."""

    def rounded(word: Word) -> Known:
        return tabled(name, QuantizeInput(word, ()).run, word.scale)

    return Unrounded(rounded, what, exact, tabled=tabled)


Value = Known | Constant | Unrounded


def refuse(node: Any, reason: str) -> PassArgsError:
    """Return the error for a node that has no meaning in integers."""
    return PassArgsError(f"node {node.name!r} {reason}")
