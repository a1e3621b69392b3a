"""Constant tensors as codes."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.integers import Scale
from chop.integers.codes import bits_for
from chop.numerics import NumberFormat
from chop.numerics.grid import Grid

MAX_BITS = 32  # of a weight
SIGNIFICAND = 53
MORE_THAN_HALF = 0.75  # of a step: further than rounding goes
FLOAT_ERROR = 2.0**-22  # of a number in float32


def weight_codes(values: Tensor, fmt: NumberFormat | None) -> tuple[Tensor, Scale, int]:
    """Return codes, their scale and their width, for values rounded to a format.

    Rows that have a single magnitude, as those of scaled signs, get it as their scale; other
    values are multiples of one power of two.
    """
    values = values.detach().double().cpu()
    check_finite(values, "weight")
    if fmt is not None and (grid := fmt.grid()) is not None:
        return _codes_on(grid, values)
    is_scaled = fmt is None or fmt.uniform().grid() is None  # not by bits of each number
    if is_scaled and (magnitude := _row_magnitudes(values)) is not None:
        return values.sign().long(), Scale.of(magnitude).compact(), 2
    codes, exponent = dyadic(values)
    width = bits_for(int(codes.min()), int(codes.max()))
    if width > MAX_BITS:
        name = "float" if fmt is None else fmt.name
        raise ValueError(
            f"has weights in {name} that need {width} bits on one grid, more than {MAX_BITS}; use "
            f"integer for them"
        )
    return codes, Scale.power(exponent), width


def check_finite(values: Tensor, what: str) -> None:
    """Refuse a constant with NaN or infinite values."""
    wrong = int((~values.isfinite()).sum())
    if wrong:
        kind = "NaN" if bool(values.isnan().any()) else "infinite"
        count = "one value" if wrong == 1 else f"{wrong} values"
        raise ValueError(f"has a {what} with {kind} ({count}); train or load it again")


def clipped(values: Tensor, rounded: Tensor, fmt: NumberFormat | None) -> int:
    """Return how many numbers a format has moved by more than rounding does."""
    step = _step(fmt, rounded)
    if step is None:
        return 0
    given, kept = values.detach().double().cpu(), rounded.detach().double().cpu()
    allowed = torch.maximum(MORE_THAN_HALF * step, FLOAT_ERROR * given.abs())
    return int(((given - kept).abs() > allowed).sum())


def _step(fmt: NumberFormat | None, values: Tensor) -> Tensor | None:
    """Return the step of a format in a shape that broadcasts to values; None if it has none."""
    if fmt is None or not fmt.is_calibrated:
        return None
    grid = fmt.grid()
    return None if grid is None else grid.scale(values.shape)


def _codes_on(grid: Grid, values: Tensor) -> tuple[Tensor, Scale, int]:
    """Return codes without their zero points; these make them one bit wider."""
    if len(grid.scales) > 1 and grid.axis is not None and grid.axis % values.ndim != 0:
        raise ValueError(
            "has one weight scale per input channel, which a sum cannot have; use the axis of the "
            "outputs"
        )
    codes = grid.encode(values) - grid.zero_point(values.shape)
    return (
        codes,
        Scale.of(grid.scale(values.shape).flatten()).compact(),
        grid.width + grid.has_zero_point,
    )


def _row_magnitudes(values: Tensor) -> Tensor | None:
    """Return one magnitude per row if each row has only one besides zero."""
    rows = values.flatten(1).abs() if values.ndim > 1 else values.abs().unsqueeze(1)
    largest = rows.amax(1)
    single = bool(((rows == 0) | (rows == largest.unsqueeze(1))).all())
    return torch.where(largest > 0, largest, 1.0) if single and values.ndim > 1 else None


def dyadic(values: Tensor) -> tuple[Tensor, int]:
    """Return integers and the exponent such that number · 2^exponent are the values."""
    values = values.detach().double().cpu()
    check_finite(values, "constant")
    used = values[values != 0]
    if not len(used):
        return torch.zeros_like(values, dtype=torch.int64), 0
    _, exponent = torch.frexp(used)
    least = int(lowest_bits(used).min())
    if int(exponent.max()) - least > 62:
        raise ValueError(
            f"has constants that need {int(exponent.max()) - least} bits on one grid; use a format "
            f"with a smaller range"
        )
    return torch.ldexp(values, torch.tensor(-least)).long(), least


def lowest_bits(values: Tensor) -> Tensor:
    """Return the exponent of the lowest bit of each number in float64 that is not zero."""
    mantissa, exponent = torch.frexp(values)
    whole = (mantissa * 2.0**SIGNIFICAND).long()
    return exponent - SIGNIFICAND + torch.log2((whole & -whole).double()).long()
