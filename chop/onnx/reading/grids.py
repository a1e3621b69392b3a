"""What a pair of QuantizeLinear and DequantizeLinear, or a `Quant` node, rounds to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from chop.numerics.grid import Grid

__all__ = ["FileGrid", "configured"]

BIAS_WIDTH = 32
AFFINE_WIDTHS = range(2, 17)


@dataclass(frozen=True)
class FileGrid(Grid):
    """What a node of a file rounds to."""

    label: str = field(default="", compare=False)  # of the node, in messages
    name: str = field(default="", compare=False)  # of the node

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

    def with_negative(self) -> FileGrid:
        """Return the signed grid of which `positive_width` is the upper half."""
        assert self.positive_width is not None
        return replace(self, low=self.low - 2 ** (self.positive_width - 1))

    def centred(self) -> FileGrid:
        """Return the same numbers with codes around 0, if these are codes of a width.

        Unsigned bytes with the zero point 128 are signed bytes without one, and the codes 124 to
        131 are those of three bits.
        """
        shifted = self.shifted(-self.zero_points[0])
        if not shifted.has_zero_point and shifted.is_full:
            return shifted
        count = self.high - self.low + 1
        if self.is_full or count < 2 or count.bit_count() != 1:
            return self
        return self.shifted(-self.low - count // 2)

    def holds(self, other: FileGrid) -> bool:
        """Whether this grid is another one, or has all its numbers, with one scale."""
        if self.centred() == other.centred():
            return True
        if self.axis is not None or other.axis is not None or self.scales != other.scales:
            return False
        like = self.like(other)
        return self.low <= like.low and like.high <= self.high

    def like(self, other: FileGrid) -> FileGrid:
        """Return the part of this grid that has the numbers of another one of the same scale."""
        shift = self.zero_points[0] - other.zero_points[0]
        return replace(self, low=other.low + shift, high=other.high + shift)

    def why_not(self) -> str | None:
        """Return why no format of ours rounds so, or None."""
        if not self.is_full:
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


def configured(operands: dict[str, FileGrid], bias: Tensor | None = None) -> dict[str, Any]:
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


def _bias_keys(operands: dict[str, FileGrid], bias: Tensor, name: str) -> dict[str, Any]:
    grid = operands.get("bias")
    if name == "affine":
        product = {"bias_width": BIAS_WIDTH}
        if grid is not None and _is_product(grid, operands):
            return {}  # the format's own default
        return product | {"bias_scale": 2.0 ** -_finest(bias, BIAS_WIDTH)}
    if grid is not None and grid.is_full:
        return grid.keys("bias", name)
    width = 2 * BIAS_WIDTH
    return {"bias_width": width, "bias_frac_width": _finest(bias, width)}


def _is_product(grid: FileGrid, operands: dict[str, FileGrid]) -> bool:
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
