"""One function per integer op: how it is written in symbolic fixed-point numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from chop.integers import Codes
from chop.registry import ByClass

__all__ = ["UNROLLED", "Array", "CountAdders", "Unroll", "UnrolledOp", "unrolls"]

Array = Any  # an alkaid FVArray: symbolic codes in the shape of the value, without its batch


class Unroll(Protocol):
    """Write one op in symbolic numbers.

    `codes` describes the inputs, then the result. The result must equal that of `op.run` for all
    inputs within their bounds; bits that the bounds of the result exclude are cut off afterwards.
    """

    def __call__(self, op: Any, inputs: Sequence[Array], codes: Sequence[Codes], /) -> Array: ...


class CountAdders(Protocol):
    """Return about how many adders an op becomes, from what is known before it is traced."""

    def __call__(self, op: Any, codes: Sequence[Codes], /) -> int: ...


def _one_per_result(op: Any, codes: Sequence[Codes]) -> int:
    return math.prod(codes[-1].shape)


@dataclass(frozen=True)
class UnrolledOp:
    """What is known of the ops of a class."""

    function: Unroll
    adders: CountAdders
    starts_layer: bool


UNROLLED: ByClass[UnrolledOp] = ByClass(
    "function for unrolled circuits", "chop.hardware.unrolled.ops", room="circuits"
)


def unrolls(
    *ops: Any, adders: CountAdders = _one_per_result, starts_layer: bool = False
) -> Callable[[Unroll], Unroll]:
    """Decorator that registers the function of one or more op classes and their subclasses.

    `adders` estimates the size before anything is traced; the default is one adder per result.
    Ops with `starts_layer` are the first of a module; others join what they take their input from.
    """

    def add(function: Unroll) -> Unroll:
        UNROLLED.register(*ops)(UnrolledOp(function, adders, starts_layer))
        return function

    return add
