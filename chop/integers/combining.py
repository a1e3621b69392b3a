"""Ops on several values."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from chop.integers.codes import Codes, check_bits
from chop.integers.ops import IntegerOp
from chop.integers.rounding import SINGLE
from chop.integers.scale import Scale


def _broadcast(codes: tuple[Codes, ...]) -> tuple[int, ...]:
    shape: torch.Size = torch.broadcast_shapes(*(x.shape for x in codes))  # type: ignore[no-untyped-call]
    return tuple(shape)


@dataclass(frozen=True, eq=False)
class SumOp(IntegerOp):
    """A sum or a difference of codes of one scale."""

    def exact_in_float(self, *codes: Codes) -> bool:
        powers = all(x.scale.power_of_two for x in codes)
        return powers and sum(x.largest for x in codes) <= SINGLE


@dataclass(frozen=True, eq=False)
class AddCodes(SumOp):
    """a + b, for codes of one scale."""

    def run(self, *inputs: Tensor) -> Tensor:
        one, other = inputs
        return one + other

    def result(self, *codes: Codes) -> Codes:
        one, other = codes
        check_bits(one.largest + other.largest, "a sum")
        shape = _broadcast(codes)
        return Codes.reaching(shape, one.low + other.low, one.high + other.high, one.scale)


@dataclass(frozen=True, eq=False)
class SubtractCodes(SumOp):
    """a - b, for codes of one scale."""

    def run(self, *inputs: Tensor) -> Tensor:
        one, other = inputs
        return one - other

    def result(self, *codes: Codes) -> Codes:
        one, other = codes
        check_bits(one.largest + other.largest, "a difference")
        shape = _broadcast(codes)
        return Codes.reaching(shape, one.low - other.high, one.high - other.low, one.scale)

    @property
    def label(self) -> str:
        return "Sub"


@dataclass(frozen=True, eq=False)
class MultiplyCodes(IntegerOp):
    """a · b, with the product of both scales."""

    def run(self, *inputs: Tensor) -> Tensor:
        one, other = inputs
        return one * other

    def result(self, *codes: Codes) -> Codes:
        one, other = codes
        check_bits(one.largest * other.largest, "a product")
        ends = [a * b for a, b in itertools.product((one.low, one.high), (other.low, other.high))]
        low, high = reduce(torch.minimum, ends), reduce(torch.maximum, ends)
        return Codes.reaching(_broadcast(codes), low, high, one.scale.times(other.scale))

    def exact_in_float(self, *codes: Codes) -> bool:
        one, other = codes
        powers = one.scale.power_of_two and other.scale.power_of_two
        return powers and one.largest * other.largest <= SINGLE

    @property
    def label(self) -> str:
        return "Mul"


@dataclass(frozen=True, eq=False)
class ConcatCodes(IntegerOp):
    """Codes one after the other along a dimension, which counts the batch."""

    dim: int

    def run(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, self.dim)

    def result(self, *codes: Codes) -> Codes:
        low, high = (
            torch.cat(ends, self.dim)[0] for ends in zip(*(x.bounds() for x in codes), strict=True)
        )
        new = Codes.reaching(tuple(low.shape), low, high, self._scale(codes))
        words = {(x.zero_point, x.width, x.signed) for x in codes}
        if len(words) > 1 or not codes[0].zero_point or not new.scale.uniform:
            return new
        first = codes[0]
        return replace(new, width=first.width, signed=first.signed, zero_point=first.zero_point)

    def _scale(self, codes: tuple[Codes, ...]) -> Scale:
        parts = (
            torch.cat([x.scale.parts[i].expand(x.shape).unsqueeze(0) for x in codes], self.dim)[0]
            for i in range(3)
        )
        return Scale(*parts)
