"""What meanings of ops are written with, and two builders: of results in torch, and of bounds."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Generic, TypeVar

import torch
from torch import Tensor

from chop.integers.codes import Codes, check_bits

__all__ = ["BoundsBuilder", "Builder", "Interval", "TorchBuilder", "Value"]

Value = TypeVar("Value")


class Builder(abc.ABC, Generic[Value]):
    """The operations that a meaning is composed of, for one kind of values.

    The second operand of a sum, a difference or a product may be an integer, or a tensor that
    broadcasts to the result without its batch. Dimensions count the batch.
    """

    @property
    @abc.abstractmethod
    def rank(self) -> int:
        """The dimensions of the largest input, without the batch."""

    def by_channel(self, numbers: Tensor) -> Tensor:
        """Return one number per channel in a shape that broadcasts to the inputs."""
        return numbers.reshape(-1, *[1] * (self.rank - 1))

    @abc.abstractmethod
    def constant(self, numbers: Tensor) -> Value:
        """Return a value that is the same for every sample."""

    @abc.abstractmethod
    def max(self, x: Value, bound: int) -> Value:
        """Return max(x, bound), for a bound that the type of x holds."""

    @abc.abstractmethod
    def clamp(self, x: Value, low: int, high: int) -> Value:
        """Return min(max(x, low), high)."""

    @abc.abstractmethod
    def multiply_by_sign(self, x: Value, negative: int, other: int) -> Value:
        """Return x · negative where x is negative, and x · other elsewhere."""

    @abc.abstractmethod
    def add(self, x: Value, y: Value | Tensor | int) -> Value:
        """Return x + y."""

    @abc.abstractmethod
    def subtract(self, x: Value, y: Value | Tensor | int) -> Value:
        """Return x - y."""

    @abc.abstractmethod
    def multiply(self, x: Value, y: Value | Tensor | int) -> Value:
        """Return x · y."""

    def affine(self, x: Value, factor: Tensor, offset: Tensor) -> Value:
        """Return x · factor + offset."""
        return self.add(self.multiply(x, factor), offset)

    @abc.abstractmethod
    def concat(self, values: Sequence[Value], dim: int) -> Value:
        """Return values one after the other along a dimension."""


class TorchBuilder(Builder[Tensor]):
    """Computes results: values are batches of int64 codes."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.inputs = inputs

    @property
    def rank(self) -> int:
        return max(x.ndim for x in self.inputs) - 1

    def constant(self, numbers: Tensor) -> Tensor:
        return numbers.unsqueeze(0)

    def max(self, x: Tensor, bound: int) -> Tensor:
        return x.clamp(min=bound)

    def clamp(self, x: Tensor, low: int, high: int) -> Tensor:
        return x.clamp(low, high)

    def multiply_by_sign(self, x: Tensor, negative: int, other: int) -> Tensor:
        return torch.where(x < 0, x * negative, x * other)

    def add(self, x: Tensor, y: Tensor | int) -> Tensor:
        return x + _beside(x, y)

    def subtract(self, x: Tensor, y: Tensor | int) -> Tensor:
        return x - _beside(x, y)

    def multiply(self, x: Tensor, y: Tensor | int) -> Tensor:
        return x * _beside(x, y)

    def affine(self, x: Tensor, factor: Tensor, offset: Tensor) -> Tensor:
        return torch.addcmul(offset.to(x.device), x, factor.to(x.device))

    def concat(self, values: Sequence[Tensor], dim: int) -> Tensor:
        return torch.cat(list(values), dim)


def _beside(x: Tensor, y: Tensor | int) -> Tensor | int:
    return y.to(x.device) if isinstance(y, Tensor) and y.device != x.device else y


@dataclass(frozen=True, eq=False)
class Interval:
    """The lowest and the highest numbers of a value, which broadcast to its shape without batch."""

    shape: tuple[int, ...]
    low: Tensor
    high: Tensor
    largest: int  # no magnitude is larger

    @classmethod
    def around(cls, y: Interval | Tensor | int) -> Interval:
        """Return an operand as an interval."""
        if isinstance(y, Interval):
            return y
        numbers = torch.as_tensor(y)
        return cls(tuple(numbers.shape), numbers, numbers, int(numbers.abs().max()))

    @property
    def full(self) -> tuple[Tensor, Tensor]:
        """Both ends in the full shape, each as a batch of one."""
        return self.low.expand(self.shape)[None], self.high.expand(self.shape)[None]


class BoundsBuilder(Builder[Interval]):
    """Computes bounds: intervals of all numbers that occur, which must fit an accumulator.

    `wide` is what a message calls a result of too many bits.
    """

    def __init__(self, codes: Sequence[Codes], wide: str = "a value") -> None:
        self.inputs = [Interval(x.shape, x.low, x.high, x.largest) for x in codes]
        self.wide = wide
        self._seen = [*self.inputs]

    @property
    def rank(self) -> int:
        return max(len(x.shape) for x in self.inputs)

    @property
    def numbers(self) -> list[int]:
        """The ends of all inputs, operands and results."""
        ends = (end for value in self._seen for end in (value.low.min(), value.high.max()))
        return [int(end) for end in ends]

    def _new(self, value: Interval) -> Interval:
        self._seen.append(value)
        return value

    def _checked(self, largest: int) -> int:
        check_bits(largest, self.wide)
        return largest

    def _ends(self, x: Interval, y: Interval, ends: Sequence[Tensor], largest: int) -> Interval:
        shape: torch.Size = torch.broadcast_shapes(x.shape, y.shape)  # type: ignore[no-untyped-call]
        low, high = reduce(torch.minimum, ends), reduce(torch.maximum, ends)
        return self._new(Interval(tuple(shape), low, high, largest))

    def constant(self, numbers: Tensor) -> Interval:
        return self._new(Interval.around(numbers))

    def max(self, x: Interval, bound: int) -> Interval:
        largest = max(x.largest, abs(bound))
        return self._new(Interval(x.shape, x.low.clamp(bound), x.high.clamp(bound), largest))

    def clamp(self, x: Interval, low: int, high: int) -> Interval:
        ends = x.low.clamp(low, high), x.high.clamp(low, high)
        return self._new(Interval(x.shape, *ends, max(abs(low), abs(high))))

    def multiply_by_sign(self, x: Interval, negative: int, other: int) -> Interval:
        largest = self._checked(x.largest * max(abs(negative), abs(other)))
        ends = [torch.where(end < 0, end * negative, end * other) for end in (x.low, x.high)]
        if (negative < 0) != (other < 0):  # the result turns round at zero
            ends.append(torch.zeros_like(x.low))
        for factor in (negative, other):
            self._new(Interval.around(factor))
        return self._ends(x, x, ends, largest)

    def add(self, x: Interval, y: Interval | Tensor | int) -> Interval:
        y = self._new(Interval.around(y))
        largest = self._checked(x.largest + y.largest)
        return self._ends(x, y, (x.low + y.low, x.high + y.high), largest)

    def subtract(self, x: Interval, y: Interval | Tensor | int) -> Interval:
        y = self._new(Interval.around(y))
        largest = self._checked(x.largest + y.largest)
        return self._ends(x, y, (x.low - y.high, x.high - y.low), largest)

    def multiply(self, x: Interval, y: Interval | Tensor | int) -> Interval:
        y = self._new(Interval.around(y))
        largest = self._checked(x.largest * y.largest)
        pairs = itertools.product((x.low, x.high), (y.low, y.high))
        return self._ends(x, y, [a * b for a, b in pairs], largest)

    def concat(self, values: Sequence[Interval], dim: int) -> Interval:
        low, high = (
            torch.cat(ends, dim)[0] for ends in zip(*(x.full for x in values), strict=True)
        )
        largest = max(x.largest for x in values)
        return self._new(Interval(tuple(low.shape), low, high, largest))
