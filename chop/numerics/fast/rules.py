"""How numbers with bits that are trained are rounded, and how they lie in memory."""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass

from chop.numerics.grid import Overflow, Rounding

LN2 = math.log(2)
ENOUGH = 64  # bits of a number whose range follows from its values


@dataclass(frozen=True)
class LearnedRule:
    """How to round; if it is `unlimited`, no value is beyond the range."""

    signed: bool
    rounding: Rounding
    overflow: Overflow
    unlimited: bool = False

    @property
    def words(self) -> tuple[bool, Rounding, Overflow]:
        """All but whether it is unlimited."""
        return self.signed, self.rounding, self.overflow

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return f"learned_{self.rounding}" + ("_wrap" if self.overflow == "wrap" else "")

    @functools.cached_property
    def arguments(self) -> tuple[float, ...]:
        """The arguments of the kernel."""
        flags = (self.signed, self.overflow == "symmetric", self.unlimited)
        return tuple(map(float, flags))

    @functools.cached_property
    def packed(self) -> ctypes.Array[ctypes.c_float]:
        return (ctypes.c_float * 3)(*self.arguments)


Places = tuple[int, int, int]  # outer, channels, inner
