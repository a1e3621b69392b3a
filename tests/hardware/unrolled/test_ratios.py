"""A rounded multiple of a code is a short product, a sum and a shift, or there is none."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chop.hardware.unrolled.ops.ratios import Ratio, digits, shortest_product

ROUNDINGS = ("even", "up", "floor")
odd = st.integers(1, 2**31).map(lambda n: n | 1)
ratios = st.builds(
    Ratio,
    odd,
    st.integers(0, 34).flatmap(lambda n: st.sampled_from([1, 3, 9, 49]).map(lambda d: d << n)),
    st.sampled_from(ROUNDINGS),
    st.integers(-(2**33), 2**33),
)
limits = st.sampled_from([(None, None), (-8, 7), (0, 255)])


@given(ratios, st.integers(-(2**12), 2**12))
def test_a_ratio_is_the_rounded_fraction(ratio, code):
    exact = Fraction(code * ratio.numerator + ratio.addend, ratio.denominator)
    half = Fraction(1, 2)
    expected = {
        "even": round(exact),
        "up": (exact + half).__floor__(),
        "floor": exact.__floor__(),
    }
    result = ratio.of(code)
    assert result == expected[ratio.rounding]
    assert ratio.of(ratio.first(result)) >= result > ratio.of(ratio.first(result) - 1)


@given(ratios, st.integers(-400, 400), st.integers(1, 400), limits)
def test_a_step_equals_the_ratio_for_every_code(ratio, low, size, clamp):
    high = low + size
    if ratio.of(high) - ratio.of(low) > 2**16:
        return
    step = shortest_product(ratio, low, high, *clamp)
    if step is None:
        assert ratio.rounding == "even" or ratio.numerator * size > 2**40
        return
    least, most = clamp if clamp[0] is not None else (-(2**70), 2**70)
    for code in range(low, high + 1):
        result = (code * step.factor + step.offset) >> step.shift
        assert min(max(result, least), most) == min(max(ratio.of(code), least), most)


def test_a_factor_of_31_bits_becomes_as_short_as_the_codes():
    step = shortest_product(Ratio(1_518_500_251, 2**38, "even"), -2000, 2000, -8, 7)
    assert step.factor < 2**9
    assert digits(step.factor) <= 5


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_only_ties_to_even_numbers_have_no_step(rounding):
    step = shortest_product(Ratio(1, 12, rounding), -500, 500, None, None)
    assert (step is None) == (rounding == "even")
