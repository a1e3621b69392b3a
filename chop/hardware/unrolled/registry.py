"""One function per integer op: how it is written in symbolic fixed-point numbers."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from chop.integers import Codes, IntegerOp

__all__ = ["Array", "CountAdders", "Unroll", "UnrolledOp", "unrolled_op", "unrolls"]

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


_known: dict[type[IntegerOp], UnrolledOp] = {}


def unrolls(
    *ops: Any, adders: CountAdders = _one_per_result, starts_layer: bool = False
) -> Callable[[Unroll], Unroll]:
    """Decorator that registers the function of one or more op classes and their subclasses.

    `adders` estimates the size before anything is traced; the default is one adder per result.
    Ops with `starts_layer` are the first of a module; others join what they take their input from.
    """

    def add(function: Unroll) -> Unroll:
        for op in ops:
            if op in _known:
                raise ValueError(f"{op.__name__} has two functions for unrolled circuits; keep one")
            _known[op] = UnrolledOp(function, adders, starts_layer)
        return function

    return add


def unrolled_op(op: IntegerOp) -> UnrolledOp | None:
    """Return what is known of an op, or of the nearest class that it inherits from."""
    _load()
    return next((_known[c] for c in type(op).__mro__ if c in _known), None)


@cache
def _load() -> None:
    """Import the files of chop/hardware/unrolled/ops, which register their functions."""
    package = importlib.import_module("chop.hardware.unrolled.ops")
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
