"""What every op of an integer graph has: a meaning in integers, and bounds of its result."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from torch import Tensor

from chop.integers.builders import BoundsBuilder, Builder, TorchBuilder, Value
from chop.integers.codes import Codes
from chop.integers.rounding import SINGLE
from chop.integers.scale import Scale


@dataclass(frozen=True, eq=False)
class IntegerOp(abc.ABC):
    """One op: `run` defines its result, and `result` describes it.

    Everything that reads an integer graph takes the meaning of an op from these two.
    """

    accumulates: ClassVar[bool] = False  # whether the result is a sum of many terms
    tabled: ClassVar[bool] = False  # whether results are entries that float32 computed
    rounds: ClassVar[bool] = False  # whether it rounds to codes, or has them from the start
    on_grid: ClassVar[bool] = False  # whether its results are codes, whatever its inputs are
    # LUTs for each bit of a kind of logic in its circuit, where it differs from that of other ops
    luts: ClassVar[Mapping[str, float]] = MappingProxyType({})

    @abc.abstractmethod
    def run(self, *inputs: Tensor) -> Tensor:
        """Return the result for batches of int64 codes."""

    @abc.abstractmethod
    def result(self, *codes: Codes) -> Codes:
        """Return the description of the result for inputs with these descriptions."""

    def fitted(self, *codes: Codes) -> Self:
        """Return the op with what follows from the descriptions of its inputs."""
        return self

    def exact_in_float(self, *codes: Codes) -> bool:
        """Return whether float32 gives the same values, for inputs that it holds exactly."""
        return True

    @property
    def label(self) -> str:
        """The name of the op in reports."""
        return type(self).__name__.removesuffix("Codes")


@dataclass(frozen=True, eq=False)
class ComposedOp(IntegerOp):
    """An op that is composed of the operations of a builder.

    Everything that reads an integer graph has a builder, and takes its code from `meaning`.
    """

    wide: ClassVar[str] = "a value"  # what a message calls a result of too many bits

    @abc.abstractmethod
    def meaning(self, b: Builder[Value], *inputs: Value) -> Value:
        """Return the result in what `b` builds."""

    def result_scale(self, *codes: Codes) -> Scale:
        """Return the scale of the result; by default that of the first input."""
        return codes[0].scale

    def run(self, *inputs: Tensor) -> Tensor:
        return self.meaning(TorchBuilder(inputs), *inputs)

    def result(self, *codes: Codes) -> Codes:
        bounds = BoundsBuilder(codes, self.wide)
        low, high = (end[0] for end in self.meaning(bounds, *bounds.inputs))
        return Codes.reaching(tuple(low.shape), low, high, self.result_scale(*codes))


@dataclass(frozen=True, eq=False)
class ArithmeticOp(ComposedOp):
    """A composed op that float32 computes exactly on powers of two, if its numbers are small."""

    def exact_in_float(self, *codes: Codes) -> bool:
        bounds = BoundsBuilder(codes, self.wide)
        self.meaning(bounds, *bounds.inputs)
        scales = (*(x.scale for x in codes), self.result_scale(*codes))
        return bounds.reach <= SINGLE and all(scale.power_of_two for scale in scales)


@dataclass(frozen=True, eq=False)
class MonotoneOp(IntegerOp):
    """An op that never lowers its result when its input grows, and keeps the scale."""

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        low, high = (self.run(bound)[0] for bound in x.bounds())
        return x.within(low, high)


@dataclass(frozen=True, eq=False)
class MovingOp(IntegerOp):
    """An op that only moves codes to other places."""

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        low, high = (self.run(bound)[0] for bound in x.bounds())
        scale = moved_scale(self, x)
        return _with_scale(x, low, high, scale)


def moved_scale(op: IntegerOp, x: Codes) -> Scale:
    """Return the scale of the moved codes."""
    if x.scale.uniform:
        return x.scale
    parts = (part.expand(x.shape).unsqueeze(0) for part in x.scale.parts)
    return Scale(*(op.run(part)[0] for part in parts))


def _with_scale(x: Codes, low: Tensor, high: Tensor, scale: Scale) -> Codes:
    codes = x.within(low, high, shape=tuple(low.shape))
    return replace(codes, scale=scale.compact())


class OnDevices:
    """Tensors of an op, copied once to each device and dtype that it runs with."""

    def __init__(self, **tensors: Tensor | None) -> None:
        self.tensors = tensors
        self.copies: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}

    def get(self, name: str, like: Tensor) -> Tensor | None:
        """Return a tensor on the device and in the dtype of `like`."""
        tensor = self.tensors[name]
        if tensor is None:
            return None
        key = (name, like.device, like.dtype)
        if key not in self.copies:
            self.copies[key] = tensor.to(like.device, like.dtype)
        return self.copies[key]
