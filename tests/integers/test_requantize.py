"""Requantisation equals its definition in fractions, for every rule and any scales."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chop.integers import Codes, Requantize, Scale, TooWide, Word
from chop.integers.codes import bits_for
from chop.integers.scale import simple_fraction
from chop.numerics.affine import Affine
from chop.numerics.integer import Integer

from .checking import OVERFLOWS, ROUNDINGS


def rounded(value, rule):
    below = math.floor(value)
    rest = value - below
    if rule == "floor" or rest < Fraction(1, 2):
        return below
    if rest > Fraction(1, 2) or rule == "up":
        return below + 1
    return below + below % 2


def overflown(code, fmt):
    low, high = fmt.codes
    if fmt.overflow != "wrap":
        return min(max(code, low), high)
    return (code - low) % 2**fmt.width + low


def requantize(codes, scale, word):
    """Run a requantisation on a batch of codes, known only by the largest of them."""
    x = torch.tensor(codes)
    ends = torch.tensor([-int(x.abs().max()) - 1, int(x.abs().max())])
    described = Codes.reaching((), ends[0], ends[1], scale)
    op = Requantize(word).fitted(described)
    result = op.result(described)
    found = op.run(x)
    assert result.lowest <= int(found.min())
    assert int(found.max()) <= result.highest
    return found.tolist(), op


@given(
    codes=st.lists(st.integers(-(2**45), 2**45) | st.integers(-99, 99), min_size=1, max_size=20),
    exponent=st.integers(-70, 20),
    divisor=st.sampled_from([1, 2, 3, 9, 49, 100]),
    width=st.integers(1, 24),
    frac=st.integers(-8, 30),
    signed=st.booleans(),
    rounding=st.sampled_from(ROUNDINGS),
    overflow=st.sampled_from(OVERFLOWS),
)
def test_fixed_point(codes, exponent, divisor, width, frac, signed, rounding, overflow):
    width = max(width, 2) if signed and overflow == "symmetric" else width
    fmt = Integer(width, frac, signed=signed, rounding=rounding, overflow=overflow)
    try:
        found, _ = requantize(codes, Scale.power(exponent).divided(divisor), Word.of(fmt.grid()))
    except TooWide:  # a quotient that wraps
        assert overflow == "wrap"
        return
    step = Fraction(2) ** (exponent + frac) / divisor
    assert found == [overflown(rounded(code * step, rounding), fmt) for code in codes]


@given(
    codes=st.lists(st.integers(-(2**58), 2**58) | st.integers(-9999, 9999), min_size=1, max_size=9),
    scale=st.floats(2.0**-40, 0.875, width=32),
    target=st.floats(2.0**-6, 2.0, width=32),
    width=st.integers(2, 16),
)
def test_float_scales_are_a_multiplier_of_31_bits_and_a_shift(codes, scale, target, width):
    fmt = Affine(width, scale=target)
    try:
        found, op = requantize(codes, Scale.of(scale), Word.of(fmt.grid()))
    except TooWide:  # a product of more than 63 bits that is hardly shifted
        assert max(map(abs, codes)) * scale / target > 2**15
        return
    ratio = torch.tensor(scale).double() / torch.tensor(target).double()
    mantissa, exponent = math.frexp(ratio.item())
    exact = Fraction(round(mantissa * 2**31)) * Fraction(2) ** (exponent - 31)
    if op.multiplier is not None:  # not for two powers of two
        assert bits_for(0, int(op.multiplier.max())) <= 31
    low, high = fmt.codes
    wanted = [min(max(rounded(code * exact, "even"), low), high) for code in codes]
    assert found == wanted


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_shifts_may_differ_by_channel(rounding):
    exponents = torch.tensor([-9, -4, 0, 3, -70])
    fmt = Integer(10, 3, rounding=rounding)
    x = torch.randint(-2000, 2000, (500, 5), generator=torch.Generator().manual_seed(0))
    low, high = torch.tensor(-2000), torch.tensor(2000)
    described = Codes.reaching((5,), low, high, Scale.power(exponents))
    op = Requantize(Word.of(fmt.grid())).fitted(described)
    found = op.run(x)
    for channel, exponent in enumerate(exponents.tolist()):
        step = Fraction(2) ** (exponent + 3)
        wanted = [overflown(rounded(c * step, rounding), fmt) for c in x[:, channel].tolist()]
        assert found[:, channel].tolist() == wanted


def test_words_have_the_codes_of_their_formats_without_the_zero_point():
    word = Word.of(Affine(8, signed=False, scale=0.1, zero_point=100).grid())
    assert (word.low, word.high, word.zero_point) == (-100, 155, 100)
    by_channel = Word.of(Affine(4, axis=1, scale=(0.5, 0.25)).grid(), rank=4)
    assert by_channel.scale.value.shape == (2, 1, 1)
    assert by_channel.scale.power_of_two
    with pytest.raises(
        ValueError, match="zero points per channel are not supported; use one for the whole"
    ):
        Word.of(Affine(4, axis=1, scale=(0.5, 0.25), zero_point=(1, 2)).grid(), rank=4)
    with pytest.raises(ValueError, match="one scale per sample; use the axis of the channels"):
        Word.of(Affine(4, axis=0, scale=(0.5, 0.25)).grid(), rank=4)


def test_a_scale_must_be_positive():
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="a scale must be a positive number"):
            Scale.of(wrong)


@given(st.floats(-4, 4, width=32))
def test_simple_fractions_are_the_same_float(value):
    found = simple_fraction(value)
    assert torch.tensor(float(found)) == torch.tensor(value)
