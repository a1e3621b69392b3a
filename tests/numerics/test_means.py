"""Mean magnitudes are the same in any order, and as exact as float32 is."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chop.numerics.means import lift, mean_magnitude

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(finite, min_size=1, max_size=50), st.randoms(use_true_random=False))
def test_no_order_changes_a_bit(values, random):
    shuffled = random.sample(values, len(values))
    assert torch.equal(*(mean_magnitude(torch.tensor(v)) for v in (values, shuffled)))


@given(st.lists(finite, min_size=1, max_size=50))
def test_the_mean_is_nearly_always_the_nearest_number(values):
    exact = math.fsum(map(abs, values)) / len(values)
    unit = max(map(abs, values)) * 2.0 ** -lift_bits(len(values))
    below = torch.tensor(max(0.0, exact - unit), dtype=torch.float64).float()
    assert below <= mean_magnitude(torch.tensor(values)) <= torch.tensor(exact).float()


def lift_bits(count):
    return int(math.log2(lift(count))) - 2  # what is cut, of a largest number that is subnormal


@given(finite, st.integers(1, 300))
def test_the_mean_of_equal_numbers_is_that_number(value, count):
    x = torch.full((count,), value)
    assert torch.equal(mean_magnitude(x), x[:1].abs())


def test_means_are_those_of_rows():
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    expected = x.abs().mean((1, 2), keepdim=True)
    torch.testing.assert_close(mean_magnitude(x), expected, rtol=2.0**-45, atol=0)
    among = x > 0
    expected = torch.stack([row[chosen].abs().mean() for row, chosen in zip(x, among, strict=True)])
    torch.testing.assert_close(mean_magnitude(x, among).flatten(), expected, rtol=2.0**-45, atol=0)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,)])
def test_of_few_numbers_or_none(shape):
    assert not mean_magnitude(torch.zeros(shape)).any()


def test_nan_counts_as_zero_and_infinity_as_the_largest_number():
    x = torch.tensor([[math.nan, 4.0], [math.inf, -math.inf]])
    assert mean_magnitude(x).flatten().tolist() == [2.0, torch.finfo(torch.float32).max]


def test_the_mean_of_none_is_zero():
    x = torch.randn(4, 5)
    assert not mean_magnitude(x, torch.zeros(4, 5, dtype=torch.bool)).any()


def test_the_sum_of_the_longest_row_fits():
    for count in (1, 2, 3, 2**20, 2**31 - 1, 2**40):
        assert count * 4 * lift(count) <= 2**62
