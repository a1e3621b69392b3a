"""Elementwise formats find the nearest value of their grid: shown by looking at all of it."""

import pytest
import torch

from chop.numerics import FORMATS
from chop.numerics.affine import Affine
from chop.numerics.fp8 import FP8
from chop.numerics.integer import Integer
from chop.numerics.log import Log
from chop.numerics.minifloat import MinifloatDenorm, MinifloatIEEE
from chop.numerics.mixed_integer import MixedInteger

INTEGERS = [
    *(Integer(width, frac) for width in (1, 2, 3, 8, 12, 16) for frac in (0, 4, None, -3, 20)),
    *(Integer(width, frac, signed=False) for width in (1, 4, 8, 16) for frac in (2, -7, 30)),
    *(Integer(8, frac, floor=True) for frac in (4, -2, 12, -120)),
    Integer(6, 3, signed=False, floor=True),
    *(Integer(8, frac, rounding="up") for frac in (4, -2, 12, -120)),
    *(
        Integer(8, 4, signed, rounding, "symmetric")
        for signed in (True, False)
        for rounding in ("even", "up", "floor")
    ),
    Integer(16, 120),
    Integer(16, -120),  # beyond the largest float32
    Integer(10, -119, signed=False),
]
MIXED = [
    *(MixedInteger(width, frac) for width in (2, 3, 8) for frac in (0, 4, None, -3)),
    MixedInteger(4, 2, False, "up", "symmetric"),
]
AFFINES = [  # powers of two, for which the quotient is exact
    *(Affine(width, scale=2.0**e) for width in (2, 3, 8, 12) for e in (0, -4, 7, -100)),
    *(Affine(width, signed=False, scale=0.25, zero_point=3) for width in (2, 4, 8)),
    *(Affine(8, scale=2.0**-6, zero_point=point) for point in (-128, 127, 5)),
    *(Affine(16, scale=2.0**-8), Affine(4, symmetric=True, scale=2.0)),
]
MINIFLOATS = [
    kind(width, exponent_width, bias)
    for kind in (MinifloatIEEE, MinifloatDenorm)
    for width, exponent_width in ((3, 1), (4, 2), (6, 2), (6, 3), (8, 4), (8, 5), (12, 3), (16, 5))
    for bias in (None, -4, 40)
]
EXTREMES = [
    MinifloatIEEE(2, 1, None),  # no bit of fraction
    MinifloatIEEE(4, 3, 3),
    MinifloatIEEE(9, 8, None),  # up to 2^128, which is no float32
    MinifloatIEEE(16, 8, None),
    MinifloatIEEE(16, 8, -126),
    MinifloatIEEE(8, 4, 140),  # down to 2^-142, a float32 below the normal ones
    MinifloatIEEE(6, 1, 140),
    MinifloatDenorm(8, 4, 140),
    MinifloatDenorm(16, 8, None),
    MinifloatDenorm(12, 8, -126),
    FP8(4, 3, saturate=True),
    FP8(5, 2, saturate=True),
]
LOGS = [
    Log(width, bias, zero=zero)
    for width, bias in ((2, None), (2, 0), (4, 3), (5, -9), (8, None), (8, 128), (9, 127), (9, 140))
    for zero in (False, True)
]
ALL = [*INTEGERS, *MIXED, *AFFINES, *MINIFLOATS, *EXTREMES, *LOGS]
QUICK = (Integer(16, 8), MinifloatIEEE(16, 5, None))  # of the large ones
CASES = [
    pytest.param(fmt, marks=pytest.mark.slow) if fmt.bits > 12 and fmt not in QUICK else fmt
    for fmt in ALL
]


def grid_of(fmt, dtype):
    """The part of the grid that `dtype` can hold."""
    grid = fmt.values()
    return grid[(grid.to(dtype).double() == grid) & grid.isfinite()]


def probes(fmt, dtype):
    """Values, their middles, the neighbours of both, what lies beyond, and random numbers."""
    grid = grid_of(fmt, dtype)
    middles = (grid[1:] / 2 + grid[:-1] / 2).to(dtype)
    geometric = grid[:0].to(dtype)
    if isinstance(fmt, Log):
        geometric = (grid[1:] * grid[:-1]).clamp(min=0).sqrt().to(dtype)
    top = torch.tensor([1.1, 2.0, 1e6], dtype=torch.float64) * grid[-1]
    special = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1.0, torch.finfo(dtype).max])
    special = torch.cat([special.to(dtype), top.to(dtype), -top.to(dtype)])
    random = torch.randn(2000, dtype=dtype) * 2.0 ** torch.randint(-140, 120, (2000,))
    near = torch.randn(2000, dtype=dtype) * fmt.largest / 2
    x = torch.cat([grid.to(dtype), middles, geometric, -geometric, special, random, near])
    infinity = torch.tensor(float("inf"), dtype=dtype)
    x = torch.cat([x, torch.nextafter(x, infinity), torch.nextafter(x, -infinity)])
    return x[x.isfinite()]


def neighbours(grid, x):
    above = torch.searchsorted(grid, x).clamp(max=len(grid) - 1)
    at_or_above = grid[above]
    below = grid[(above - (at_or_above > x).long()).clamp(min=0)]
    return below, at_or_above


def nearest(grid, x, *, ties_up=False):
    """Ties go to the even multiple of the step between both neighbours, or to the larger one."""
    x = x.double().clamp(grid[0], grid[-1])
    below, above = neighbours(grid, x)
    down, up = x - below, above - x
    even = (below / torch.where(above > below, above - below, 1.0)).remainder(2) == 0
    return torch.where((down < up) | ((down == up) & even & (not ties_up)), below, above)


def next_below(grid, x):
    x = x.double().clamp(grid[0], grid[-1])
    return neighbours(grid, x)[0]


def nearest_in_log2(grid, x):
    """Zero only for zero; otherwise the power whose exponent is nearest, with the sign of x."""
    powers = grid[grid > 0]
    magnitude = x.double().abs().clamp(powers[0], powers[-1])
    below, above = neighbours(powers, magnitude)
    power = torch.where(magnitude * magnitude < below * above, below, above)
    rounded = torch.where(x < 0, -power, power)
    return torch.where(x == 0, 0.0, rounded) if (grid == 0).any() else rounded


def expected(fmt, x):
    grid = grid_of(fmt, x.dtype)
    if isinstance(fmt, Log):
        return nearest_in_log2(grid, x)
    if getattr(fmt, "floor", False):
        return next_below(grid, x)
    return nearest(grid, x, ties_up=getattr(fmt, "rounding", "even") == "up")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("fmt", CASES, ids=repr)
class TestGrid:
    @pytest.mark.sampled(73)
    def test_every_value_is_a_fixed_point(self, fmt, dtype):
        grid = grid_of(fmt, dtype)
        assert torch.equal(fmt(grid.to(dtype)).double(), grid)

    @pytest.mark.sampled(73)
    def test_the_result_is_the_nearest_value(self, fmt, dtype):
        if isinstance(fmt, FP8):
            dtype = torch.float32  # torch itself rounds a double twice
        x = probes(fmt, dtype)
        found, wanted = fmt(x).double(), expected(fmt, x)
        wrong = found != wanted
        assert not wrong.any(), list(zip(x[wrong], found[wrong], wanted[wrong], strict=True))[:5]

    @pytest.mark.sampled(33)
    def test_infinities_become_the_ends_and_nan_stays(self, fmt, dtype):
        grid = grid_of(fmt, dtype)
        y = fmt(torch.tensor([float("-inf"), float("inf"), float("nan")], dtype=dtype)).double()
        assert y[:2].tolist() == [grid[0], grid[-1]]
        assert y[2].isnan()


@pytest.mark.sampled(22)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fmt", CASES, ids=repr)
def test_half_precision_gives_the_nearest_value_as_far_as_it_can_be_held(fmt, dtype):
    x = torch.arange(-(2**15), 2**15, 5, dtype=torch.int32).to(torch.int16).view(dtype)
    x = x[x.isfinite()]
    highest = torch.finfo(dtype).max
    wanted = expected(fmt, x.float()).float().clamp(-highest, highest).to(dtype)
    assert torch.equal(fmt(x), wanted)


@pytest.mark.parametrize("fmt", CASES, ids=repr)
def test_a_format_knows_its_bits_and_its_ends(fmt):
    grid = fmt.values()
    assert (grid.diff() > 0).all()
    assert fmt.largest == grid[-1]
    assert fmt.smallest == (grid[grid > 0][0] if fmt.largest > 0 else fmt.smallest)
    assert fmt.range[0] == grid[0]
    assert len(grid) <= 2**fmt.bits
    if isinstance(fmt, Integer):
        unused = fmt.signed and fmt.overflow == "symmetric"
        assert len(grid) == 2**fmt.bits - unused


def test_all_elementwise_formats_are_here():
    here = {type(fmt) for fmt in ALL}
    # float is torch itself; binary_residual adds signs up and need not be nearest
    elsewhere = {"float", "binary_residual"}
    assert here == {cls for name, cls in FORMATS.items() if cls.elementwise} - {
        FORMATS[name] for name in elsewhere
    }


PATTERNS = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)


def same_bits(a, b):
    number = a.isnan() == b.isnan()
    return number.all() and torch.equal(a.nan_to_num(nan=7.0), b.nan_to_num(nan=7.0))


@pytest.mark.parametrize("kind", [(4, 3), (5, 2)])
class TestFP8:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
    def test_every_half_is_cast_as_torch_casts_it(self, kind, dtype):
        fmt, x = FP8(*kind), PATTERNS.to(dtype)
        assert same_bits(fmt(x), x.to(fmt.dtype).to(dtype))

    def test_a_million_singles_are_cast_as_torch_casts_them(self, kind):
        fmt = FP8(*kind)
        x = torch.randint(-(2**31), 2**31, (1_000_000,)).to(torch.int32).view(torch.float32)
        x = torch.cat([x, torch.randn(1000) * 100])
        assert same_bits(fmt(x), x.to(fmt.dtype).float())

    def test_it_is_the_minifloat_of_the_same_shape_where_that_has_numbers(self, kind):
        exponent_width, fraction = kind
        fmt = FP8(*kind, saturate=True)
        other = MinifloatIEEE(8, exponent_width, None)
        x = PATTERNS[PATTERNS.abs() <= fmt.largest].float()
        assert torch.equal(fmt(x), other(x))
        assert fraction == other.fraction


def test_whole_ranges_of_single_precision_survive_a_wide_enough_format():
    fmt = Integer(64, 20)
    x = torch.randn(1000).mul(1e6).mul(2**20).round().div(2**20)
    assert torch.equal(fmt(x), x)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("width", [32, 53, 63, 64])
def test_wide_integers_saturate_at_a_number_that_the_dtype_has(width, signed):
    fmt = Integer(width, 0, signed=signed)
    for dtype in (torch.float32, torch.float64):
        top = fmt(torch.tensor(1e30, dtype=dtype)).item()
        assert int(top) <= fmt.codes[1] < int(top) * (1 + 2.0**-23) + 1
