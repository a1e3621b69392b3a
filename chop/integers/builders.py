"""What meanings of ops are written with, and two builders: of results in torch, and of bounds."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Generic, NamedTuple, TypeVar

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


class Interval(NamedTuple):
    """The lowest and the highest numbers of a value, each as a batch of one."""

    low: Tensor
    high: Tensor

    @property
    def ends(self) -> tuple[int, int]:
        return int(self.low.min()), int(self.high.max())

    @property
    def largest(self) -> int:
        """The largest magnitude."""
        return max(map(abs, self.ends))


class BoundsBuilder(Builder[Interval]):
    """Computes intervals of all numbers that occur, none of which may be too wide.

    `wide` is what a message calls such a result.
    """

    def __init__(self, codes: Sequence[Codes], wide: str = "a value") -> None:
        self.inputs = [Interval(*x.bounds()) for x in codes]
        self.wide = wide
        self.numbers = [end for x in self.inputs for end in x.ends]  # of operands and results, too
        self.reach = 0  # of sums and products

    @property
    def rank(self) -> int:
        return max(x.low.ndim for x in self.inputs) - 1

    def _known(self, y: Interval | Tensor | int) -> Interval:
        """Return an operand as an interval."""
        if not isinstance(y, Interval):
            y = Interval(numbers := torch.as_tensor(y), numbers)
        self.numbers += y.ends
        return y

    def _check(self, largest: int) -> None:
        check_bits(largest, self.wide)
        self.reach = max(self.reach, largest)

    def _over(self, ends: Iterable[Tensor]) -> Interval:
        """Return the interval over the results for all ends of the operands."""
        results = list(ends)
        low, high = reduce(torch.minimum, results), reduce(torch.maximum, results)
        return self._known(Interval(low, high))

    def constant(self, numbers: Tensor) -> Interval:
        return self._known(Interval(numbers.unsqueeze(0), numbers.unsqueeze(0)))

    def max(self, x: Interval, bound: int) -> Interval:
        return self._over(end.clamp(min=bound) for end in x)

    def clamp(self, x: Interval, low: int, high: int) -> Interval:
        return self._over(end.clamp(low, high) for end in x)

    def multiply_by_sign(self, x: Interval, negative: int, other: int) -> Interval:
        self._check(x.largest * max(abs(negative), abs(other)))
        self.numbers += negative, other
        # where the result turns round, its end is at zero
        turn = [torch.zeros_like(x.low)] if (negative < 0) != (other < 0) else []
        return self._over(
            [*(torch.where(end < 0, end * negative, end * other) for end in x), *turn]
        )

    def add(self, x: Interval, y: Interval | Tensor | int) -> Interval:
        y = self._known(y)
        self._check(x.largest + y.largest)
        return self._over((x.low + y.low, x.high + y.high))

    def subtract(self, x: Interval, y: Interval | Tensor | int) -> Interval:
        y = self._known(y)
        self._check(x.largest + y.largest)
        return self._over((x.low - y.high, x.high - y.low))

    def multiply(self, x: Interval, y: Interval | Tensor | int) -> Interval:
        y = self._known(y)
        self._check(x.largest * y.largest)
        return self._over(a * b for a in x for b in y)

    def concat(self, values: Sequence[Interval], dim: int) -> Interval:
        return self._known(Interval(*(torch.cat(ends, dim) for ends in zip(*values, strict=True))))
