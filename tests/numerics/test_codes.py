"""A grid turns values into codes and back: per tensor, channel, block and element."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chop.numerics import FORMATS, NumberFormat
from chop.numerics.affine import Affine
from chop.numerics.affine_rounding import ScaledAffine
from chop.numerics.binary import Binary
from chop.numerics.block_fp import BlockFP
from chop.numerics.grid import ElementGrid, Grid, code_range
from chop.numerics.integer import Integer
from chop.numerics.log import Log
from chop.numerics.mixed_integer import MixedInteger
from chop.numerics.mixed_rounding import MixedRounding
from chop.numerics.mx import MXFP, MXInt
from chop.numerics.scale_integer import ScaleInteger

ROUNDINGS, OVERFLOWS = ("even", "up", "floor"), ("saturate", "symmetric", "wrap")
values = st.lists(st.floats(-50, 50, width=32), min_size=6, max_size=6)
tensors = values.map(lambda numbers: torch.tensor(numbers).reshape(3, 2))
widths = st.lists(st.integers(-2, 5), min_size=6, max_size=6)
bits = widths.map(lambda numbers: torch.tensor(numbers).reshape(3, 2))


def check(grid, x, y):
    """Codes of values and of what rounds to them are the same, in range, and give the values."""
    codes = grid.encode(y)
    assert torch.equal(codes, grid.encode(x))
    assert grid.low <= int(codes.min()) <= int(codes.max()) <= grid.high
    assert torch.equal(grid.decode(codes), y)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("overflow", OVERFLOWS)
@given(x=tensors, width=st.integers(2, 12), frac=st.integers(-3, 9), signed=st.booleans())
def test_fixed_point(x, width, frac, signed, rounding, overflow):
    fmt = Integer(width, frac, signed, rounding, overflow)
    check(fmt.grid(), x, fmt(x))


@given(
    x=tensors,
    axis=st.sampled_from([0, -2, 1, -1]),
    scales=st.lists(st.floats(2**-6, 8, width=32), min_size=3, max_size=3),
    points=st.lists(st.integers(-8, 7), min_size=3, max_size=3),
)
def test_a_scale_and_zero_point_per_channel(x, axis, scales, points):
    count = x.shape[axis]
    fmt = Affine(4, axis=axis, scale=scales[:count], zero_point=points[:count])
    check(fmt.grid(), x, fmt(x))
    kept = ScaledAffine(fmt, *fmt.tensors())
    assert kept.grid() == fmt.grid()


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("overflow", OVERFLOWS)
@given(x=tensors, integer=bits, frac=bits, signed=st.booleans())
def test_bits_per_element(x, integer, frac, signed, rounding, overflow):
    fmt = MixedInteger(8, 4, signed, rounding, overflow, granularity="element")
    kept = MixedRounding(fmt, frac, integer)
    grid = kept.grid()
    check(grid, x, kept(x))
    if isinstance(grid, ElementGrid) and (cover := grid.cover((8, 16))) and overflow != "wrap":
        assert torch.equal(cover.decode(cover.encode(kept(x))), kept(x))


def test_equal_bits_of_elements_are_one_grid():
    fmt = MixedInteger(8, 4, granularity="element")
    two, three = torch.full((2, 2), 2), torch.full((2, 2), 3)
    assert MixedRounding(fmt, three, two).grid() == Integer(6, 3).grid()


def test_a_scale_per_block():
    grid = Grid(-8, 7, (1.0, 0.5, 2.0, 4.0), axis=1, block=2)
    codes = torch.tensor([[1, 2, 3], [-8, 7, 1]])
    y = grid.decode(codes)
    assert y.tolist() == [[1.0, 2.0, 1.5], [-16.0, 14.0, 4.0]]
    check(grid, y, y)


def test_nan_has_the_code_of_zero_and_infinities_those_of_the_ends():
    x = torch.tensor([float("nan"), float("inf"), -float("inf")])
    for overflow in ("saturate", "wrap"):
        assert Integer(4, 0, overflow=overflow).grid().encode(x).tolist() == [0, 7, -8]
    assert Affine(4, scale=1.0, zero_point=3).grid().encode(x).tolist() == [3, 7, -8]


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("width", [2, 3, 8, 64])
def test_the_width_follows_from_the_codes(width, signed, narrow):
    grid = Grid(*code_range(width, signed, narrow), (1.0,))
    assert (grid.width, grid.signed, grid.is_full) == (width, signed, True)
    assert grid.narrow == (signed and narrow)


def test_shifted_codes_are_the_same_values():
    grid = Affine(4, scale=0.3, zero_point=2).grid()
    moved = grid.shifted(128)
    codes = torch.arange(grid.low, grid.high + 1)
    assert torch.equal(moved.decode(codes + 128), grid.decode(codes))
    assert (moved.low, moved.high, moved.zero_points) == (120, 135, (130,))


HOLDING = [
    *(Integer(4, 2, rounding="floor"), Log(5, 7), MXInt(4, [3]), MXFP(2, 1, [3], block_dim=0)),
    *(BlockFP(8, 8, 127, [2, 2]), ScaleInteger(4), Binary(1, False, True, scaled=True)),
]


@pytest.mark.parametrize("fmt", HOLDING, ids=repr)
@given(x=tensors)
def test_rounding_with_the_scales_of_a_tensor_is_that_of_the_format(fmt, x):
    held = fmt.with_scales_of(x)
    assert torch.equal(held.nearest(x), fmt(x))
    turned = held.mapped(lambda scale: scale.T)
    assert torch.equal(turned.nearest(x.T), fmt(x).T)
    if held.sets_scale is not None:
        assert held.sets_scale.any()


def test_formats_without_codes_of_their_own_say_so():
    with_grid = {cls.name for cls in FORMATS.values() if cls.grid is not NumberFormat.grid}
    assert with_grid >= {"integer", "affine"}
    assert MixedInteger(8, 4).grid() is None  # its bits are those of a layer
    with pytest.raises(ValueError, match="has no scale yet"):
        Affine(8).grid()
