"""Fixed point: an integer of `width` bits, `frac_width` of them after the binary point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor

from chop.numerics.affine import CALIBRATED
from chop.numerics.base import NumberFormat
from chop.numerics.exponents import LAYOUTS, whole_at_most
from chop.numerics.fast.plans import RoundingPlan
from chop.numerics.grid import Grid, Overflow, Rounding, code_range
from chop.numerics.scratch import scratch

RULES = {"even": "integer", "up": "integer_up", "floor": "integer_floor"}  # of the kernels


@dataclass(frozen=True)
class Integer(NumberFormat, name="integer", suffix="Integer", aliases=("fixed",)):
    """Two's complement; `rounding` even, up or floor; `overflow` saturate, symmetric or wrap.

    `frac_width` may be negative or above `width`; it defaults to half of `width`.

    Rounding: "even" goes to the nearest value, ties to the even code; "up" to the nearest value,
    ties to the larger one; "floor" to the next value below. `floor = true` is another way to write
    `rounding = "floor"`.

    Overflow: "saturate" goes to the nearest end; so does "symmetric", with ends of the same
    magnitude, which needs 2 bits (without a sign, both are the same); "wrap" keeps the lowest
    `width` bits of the code. Infinities become the end of their sign even if finite values wrap. A
    code that the tensor's dtype cannot hold becomes the nearest one that it can.

    With `ste = "clip"` gradients pass only within the range, so not where a value wrapped.
    """

    light: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("rounding", "overflow")
    calibrated_keys: ClassVar[tuple[str, ...]] = ("frac_width",)
    advice: ClassVar[Mapping[str, str]] = {
        "frac_width": 'give a number, "calibrated", or "NA" for half of the width'
    }

    width: int
    frac_width: int
    signed: bool = True
    rounding: Rounding = "even"
    overflow: Overflow = "saturate"
    _edges: ClassVar[dict[torch.dtype, tuple[float, float]]]  # per instance, never a field

    def __init__(
        self,
        width: int,
        frac_width: int,
        signed: bool = True,
        rounding: Rounding | None = None,
        overflow: Overflow = "saturate",
        *,
        floor: bool | None = None,
        ste: Literal["identity", "clip"] = "identity",
    ) -> None:
        if rounding is None:
            rounding = "floor" if floor else "even"
        vars(self).update(width=width, frac_width=frac_width, signed=signed)
        vars(self).update(rounding=rounding, overflow=overflow, ste=ste)
        self.__post_init__()
        self._check_floor(floor)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("width", 1, 64)
        self.fill_in("frac_width", self.width // 2)
        frac_width: Any = self.frac_width
        self.require(
            frac_width != CALIBRATED,
            f"frac_width is {CALIBRATED!r}, which needs data; use quantize_transform_pass, or give "
            f"a number",
        )
        self.require_whole("frac_width", -120, 120)
        self.require_flags("signed")
        self.require_word("rounding", *get_args(Rounding))
        self.require_word("overflow", *get_args(Overflow))
        self.require(
            self.width > 1 or not self.signed or self.overflow != "symmetric",
            "overflow 'symmetric' needs at least 2 bits with a sign, as 1 bit holds only 0; "
            "use 'saturate', or a larger width",
        )
        edges = {dtype: self._codes_in(dtype) for dtype in LAYOUTS}
        object.__setattr__(self, "_edges", edges)

    def _check_floor(self, floor: bool | None) -> None:
        """Refuse another `floor` than `rounding` gives."""
        if floor is None:
            return
        flag = isinstance(floor, int) and floor in (0, 1)
        self.require(flag, f"floor must be true or false, not {floor!r}")
        text = f"floor = {str(bool(floor)).lower()} contradicts rounding; leave floor out"
        self.require(bool(floor) == self.floor, text)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled format, also one from before `rounding` and `overflow`."""
        given = {key: value for key, value in state.items() if key != "_edges"}
        vars(self).update(vars(type(self)(**given)))

    @property
    def floor(self) -> bool:
        """Whether values are rounded down."""
        return self.rounding == "floor"

    @property
    def wraps(self) -> bool:
        """Whether codes beyond the ends wrap around."""
        return self.overflow == "wrap"

    @classmethod
    def refinement_keys(cls) -> list[str]:
        return [*super().refinement_keys(), "floor"]

    def for_operand(self, operand: str, *, non_negative: bool = False) -> Self:
        return replace(self, signed=False) if non_negative else self

    @property
    def codes(self) -> tuple[int, int]:
        """The smallest and the largest integer."""
        return code_range(self.width, self.signed, self.overflow == "symmetric")

    def _codes_in(self, dtype: torch.dtype) -> tuple[float, float]:
        """The codes with values that `dtype` can hold."""
        highest = 2 ** (LAYOUTS[dtype].bias + 1) - 1
        shift = self.frac_width
        edge = highest << shift if shift >= 0 else highest >> -shift
        low, high = self.codes
        return whole_at_most(max(low, -edge), dtype), whole_at_most(min(high, edge), dtype)

    def round(self, x: Tensor) -> Tensor:
        scale = 2.0**self.frac_width
        whole = x * scale
        out = scratch(whole)
        if self.rounding == "floor":
            whole = torch.floor(whole, out=out)
            # a small negative number may have become zero
            whole = torch.sub(whole, (whole / scale > x).to(x.dtype), out=out)
        elif self.rounding == "up":
            # exact, unlike the sum of a number and one half
            nearest = torch.round(whole)
            whole = torch.add(nearest, (whole - nearest == 0.5).to(x.dtype), out=out)
        else:
            whole = torch.round(whole, out=out)
        if self.overflow == "wrap":
            whole = self._wrapped(whole, x)
            out = scratch(whole)
        low, high = self._edges[x.dtype]
        whole = torch.clamp(whole, low, high, out=out)
        return torch.div(whole, scale, out=out)

    def _wrapped(self, whole: Tensor, x: Tensor) -> Tensor:
        """The codes modulo 2^width; infinite where `x` is."""
        turns = whole * 2.0**-self.width
        part = turns - turns.trunc()
        low = -0.5 if self.signed else 0.0
        part = torch.where(part >= low + 1, part - 1, part)
        part = torch.where(part < low, part + 1, part)
        # a finite number whose code is too large for its dtype has only zeros as its lowest bits
        beyond = torch.where(x.isinf(), x, torch.zeros_like(x))
        return torch.where(whole.isinf(), beyond, part * 2.0**self.width)

    def plan(self, device: torch.device) -> RoundingPlan:
        low, high = self._edges[torch.float32]
        rule = RULES[self.rounding] + ("_wrap" if self.wraps else "")
        size = (2.0**self.width,) if self.wraps else ()
        scale = 2.0**self.frac_width
        return RoundingPlan(rule, (scale, low, high, 1 / scale, *size))

    @property
    def bits(self) -> float:
        return self.width

    @property
    def largest(self) -> float:
        return self.codes[1] * 2.0**-self.frac_width

    @property
    def smallest(self) -> float:
        return 2.0**-self.frac_width

    @property
    def range(self) -> tuple[float, float]:
        return self.codes[0] * 2.0**-self.frac_width, self.largest

    def calibrated_numbers(self) -> dict[str, Any]:
        return {"Fraction": self.frac_width}

    def grid(self) -> Grid:
        scales = (2.0**-self.frac_width,)
        return Grid(*self.codes, scales, rounding=self.rounding, overflow=self.overflow)

    def values(self) -> Tensor:
        low, high = self.codes
        return torch.arange(low, high + 1, dtype=torch.float64) * 2.0**-self.frac_width
