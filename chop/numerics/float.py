"""The numbers that torch computes with."""

from dataclasses import dataclass

from torch import Tensor

from chop.numerics.base import NumberFormat


@dataclass(frozen=True)
class Float(NumberFormat, name="float", suffix="Float"):
    """A tensor left as it is; `width` says how many bits an element takes."""

    width: int

    def quantize(self, x: Tensor) -> Tensor:
        return x

    @property
    def bits(self) -> float:
        return self.width
