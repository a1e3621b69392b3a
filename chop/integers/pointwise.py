"""Ops on each code alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.integers.codes import Codes, Word, check_bits
from chop.integers.ops import IntegerOp, MonotoneOp
from chop.integers.rounding import SINGLE
from chop.integers.scale import Scale


@dataclass(frozen=True, eq=False)
class ReluCodes(MonotoneOp):
    """max(code, 0)."""

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return x.clamp(min=0)


@dataclass(frozen=True, eq=False)
class ClampCodes(MonotoneOp):
    """min(max(code, low), high), as relu6 and hardtanh compute."""

    low: int
    high: int

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return x.clamp(self.low, self.high)

    def exact_in_float(self, *codes: Codes) -> bool:
        return codes[0].scale.power_of_two


@dataclass(frozen=True, eq=False)
class LeakyReluCodes(IntegerOp):
    """code · denominator, or code · numerator if it is negative, in steps of 1 / denominator."""

    numerator: int
    denominator: int

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return torch.where(x >= 0, x * self.denominator, x * self.numerator)

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        check_bits(x.largest * max(abs(self.numerator), self.denominator), "a product")
        ends = [self.run(bound)[0] for bound in x.bounds()]
        low, high = torch.minimum(*ends), torch.maximum(*ends)
        if self.numerator < 0:  # the smallest result lies at zero
            low = torch.minimum(low, torch.zeros_like(low))
        return Codes.reaching(x.shape, low, high, x.scale.divided(self.denominator))

    def exact_in_float(self, *codes: Codes) -> bool:
        (x,) = codes
        power = self.denominator & (self.denominator - 1) == 0
        largest = x.largest * max(abs(self.numerator), self.denominator)
        return power and x.scale.power_of_two and largest <= SINGLE

    @property
    def label(self) -> str:
        return f"LeakyRelu {self.numerator}/{self.denominator}"


@dataclass(frozen=True, eq=False)
class Lookup(IntegerOp):
    """A table with one entry per code of the input: any function, rounded to a word."""

    entries: Tensor
    lowest: int
    word: Word

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return self.entries.to(x.device)[x - self.lowest]

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        reached = self.entries[x.lowest - self.lowest : x.highest - self.lowest + 1]
        return self.word.codes(x.shape, reached.min(), reached.max())

    @property
    def label(self) -> str:
        return f"Table {len(self.entries)}"


@dataclass(frozen=True, eq=False)
class Refine(IntegerOp):
    """code · factor in steps that are smaller by the factor: the same values on a finer grid."""

    factor: Tensor

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return x * self.factor.to(x.device)

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        check_bits(x.largest * int(self.factor.max()), "a value on a finer grid")
        low, high = (self.run(bound)[0] for bound in x.bounds())
        return Codes.reaching(x.shape, low, high, x.scale.divided(self.factor))


@dataclass(frozen=True, eq=False)
class ConstantCodes(IntegerOp):
    """Codes that are the same for every sample."""

    value: Tensor
    scale: Scale

    def run(self, *inputs: Tensor) -> Tensor:
        return self.value.unsqueeze(0)

    def result(self, *codes: Codes) -> Codes:
        return Codes.reaching(tuple(self.value.shape), self.value, self.value, self.scale)
