"""What a pair of QuantizeLinear and DequantizeLinear, or a `Quant` node, rounds to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

__all__ = ["Grid", "configured"]

Rounding = Literal["even", "up", "floor"]
BIAS_WIDTH = 32
AFFINE_WIDTHS = range(2, 17)


@dataclass(frozen=True)
class Grid:
    """Codes from `low` to `high`, times a scale for the tensor or for each index along `axis`."""

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    low: int
    high: int
    axis: int | None = None
    rounding: Rounding = "even"
    label: str = field(default="", compare=False)  # of the node, in messages
    name: str = field(default="", compare=False)  # of the node

    @property
    def width(self) -> int | None:
        """The bits of the codes; None if the codes are not those of a width."""
        for signed in (True, False):
            for narrow in (False, True):
                width = (self.high + 1).bit_length() if signed else self.high.bit_length()
                if width and self._codes(width, signed, narrow) == (self.low, self.high):
                    return width
        return None

    @property
    def signed(self) -> bool:
        return self.low < 0

    @property
    def narrow(self) -> bool:
        """Whether the lowest code of signed numbers is left out."""
        return self.signed and self.low == -self.high

    def _codes(self, width: int, signed: bool, narrow: bool) -> tuple[int, int]:
        if not signed:
            return 0, 2**width - 1
        high = 2 ** (width - 1) - 1
        return (-high if narrow else -high - 1), high

    @property
    def is_fixed_point(self) -> bool:
        """Whether it is our format `integer`: one scale, a power of two, and no zero point."""
        scales = set(self.scales)
        power = len(scales) == 1 and math.frexp(self.scales[0])[0] == 0.5
        return power and not any(self.zero_points)

    @property
    def frac_width(self) -> int:
        return 1 - math.frexp(self.scales[0])[1]

    def clipped(self, low: float | None, high: float | None) -> Grid:
        """Return the grid with fewer codes."""
        lowest = self.low if low is None else max(self.low, math.ceil(low))
        highest = self.high if high is None else min(self.high, math.floor(high))
        return replace(self, low=lowest, high=highest)

    @property
    def positive_width(self) -> int | None:
        """The width of signed codes of which only those from the zero point upwards are left.

        An exporter writes a ReLU before a rounding as such a clip on codes. Codes that are unsigned
        anyway have none.
        """
        points = set(self.zero_points)
        largest = self.high - self.zero_points[0]
        is_end = largest > 0 and (largest + 1).bit_count() == 1
        return largest.bit_length() + 1 if points == {self.low} and is_end else None

    def with_negative(self) -> Grid:
        """Return the signed grid of which `positive_width` is the upper half."""
        assert self.positive_width is not None
        return replace(self, low=self.low - 2 ** (self.positive_width - 1))

    def centred(self) -> Grid:
        """Return the same numbers with codes around 0, if these are codes of a width.

        Unsigned bytes with the zero point 128 are signed bytes without one, and the codes 124 to
        131 are those of three bits.
        """
        point = self.zero_points[0]
        zeros = tuple(0 for _ in self.zero_points)
        shifted = replace(self, low=self.low - point, high=self.high - point, zero_points=zeros)
        is_same = len(set(self.zero_points)) == 1
        if is_same and shifted.width is not None:
            return shifted
        count = self.high - self.low + 1
        if self.width is not None or count < 2 or count.bit_count() != 1:
            return self
        move = self.low + count // 2
        points = tuple(point - move for point in self.zero_points)
        return replace(self, low=self.low - move, high=self.high - move, zero_points=points)

    def holds(self, other: Grid) -> bool:
        """Whether this grid is another one, or has all its numbers, with one scale."""
        if self.centred() == other.centred():
            return True
        if self.axis is not None or other.axis is not None or self.scales != other.scales:
            return False
        like = self.like(other)
        return self.low <= like.low and like.high <= self.high

    def like(self, other: Grid) -> Grid:
        """Return the part of this grid that has the numbers of another one of the same scale."""
        shift = self.zero_points[0] - other.zero_points[0]
        return replace(self, low=other.low + shift, high=other.high + shift)

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest number."""
        pairs = list(zip(self.scales, self.zero_points, strict=True))
        lows, highs = ([(code - z) * s for s, z in pairs] for code in (self.low, self.high))
        return min(lows), max(highs)

    def why_not(self) -> str | None:
        """Return why no format of ours rounds so, or None."""
        if self.width is None:
            return f"has the codes from {self.low} to {self.high}, which are not those of a width"
        if self.is_fixed_point:
            return None
        if self.rounding != "even":
            return "rounds ties up or down, which only a scale that is a power of two can have"
        if self.width not in AFFINE_WIDTHS:
            return f"has {self.width} bits with a scale that is not a power of two"
        return None

    def keys(self, operand: str, name: str) -> dict[str, Any]:
        """Return the keys of an operand in a config of the format `name`."""
        keys: dict[str, Any] = {"width": self.width, "signed": self.signed}
        if name == "integer":
            keys |= {"frac_width": self.frac_width, "rounding": self.rounding}
            keys |= {"overflow": "symmetric"} if self.narrow else {}
        else:
            per_axis = self.axis is not None
            keys |= {"scale": list(self.scales) if per_axis else self.scales[0]}
            if any(self.zero_points):
                points = list(self.zero_points)
                keys |= {"zero_point": points if per_axis else points[0]}
            keys |= {"axis": self.axis} if per_axis else {}
            keys |= {"symmetric": True} if self.narrow else {}
        return {f"{operand}_{key}": value for key, value in keys.items()}


def configured(operands: dict[str, Grid], bias: Tensor | None = None) -> dict[str, Any]:
    """Return the config of a node whose operands are rounded to grids.

    A float `bias` gets the finest steps that 32 bits have: what they leave out is below the
    rounding of a float32 sum.
    """
    fixed = all(grid.is_fixed_point for grid in operands.values())
    name = "integer" if fixed else "affine"
    config: dict[str, Any] = {"name": name}
    for operand, grid in operands.items():
        if operand != "bias":
            config |= grid.keys(operand, name)
    if bias is not None:
        config |= _bias_keys(operands, bias, name)
    return config


def _bias_keys(operands: dict[str, Grid], bias: Tensor, name: str) -> dict[str, Any]:
    grid = operands.get("bias")
    if name == "affine":
        product = {"bias_width": BIAS_WIDTH}
        if grid is not None and _is_product(grid, operands):
            return {}  # the format's own default
        return product | {"bias_scale": 2.0 ** -_finest(bias, BIAS_WIDTH)}
    if grid is not None and grid.width is not None:
        return grid.keys("bias", name)
    width = 2 * BIAS_WIDTH
    return {"bias_width": width, "bias_frac_width": _finest(bias, width)}


def _is_product(grid: Grid, operands: dict[str, Grid]) -> bool:
    data, weight = operands["data_in"], operands["weight"]
    wanted = [data.scales[0] * scale for scale in weight.scales]
    have = list(grid.scales) * (len(wanted) if len(grid.scales) == 1 else 1)
    return len(have) == len(wanted) and all(
        math.isclose(h, w, rel_tol=1e-6) for h, w in zip(have, wanted, strict=True)
    )


def _finest(bias: Tensor, width: int) -> int:
    """Return the most fraction bits with which all numbers of a bias fit into a width."""
    largest = float(bias.detach().abs().max()) if bias.numel() else 0.0
    return min(100, width - 1 - math.frexp(largest)[1]) if largest else 0
