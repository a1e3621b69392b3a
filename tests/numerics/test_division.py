"""The division of the Triton kernels, step by step on the CPU: what it gives is rounded once."""

import numpy as np
import pytest

from chop.numerics.fast.plans import reciprocal

F = np.float32
ONE = F(1)


def fma(a, b, c):
    """a * b + c of float32, rounded once: the sum of two doubles is made odd before it is cut."""
    product, c = np.float64(a) * np.float64(b), np.float64(c)
    total = product + c
    back = total - product
    missed = (product - (total - back)) + (c - back)
    bits = np.atleast_1d(total).view(np.int64)
    towards = np.where((missed > 0) == (total > 0), 1, -1)
    odd = np.where((missed != 0) & (bits & 1 == 0), bits + towards, bits)
    return odd.view(np.float64).astype(F)


def divided(a, b):
    """As `_divided` in chop/numerics/kernels/rules.py."""
    inverse = ONE / b
    rest = fma(-inverse, b, ONE) * inverse
    near = fma(a, inverse, a * rest)
    return fma(fma(-near, b, a), inverse, near)


def test_a_sum_of_products_is_rounded_once():
    one, tiny = F(1 + 2.0**-12), F(2.0**-60)
    tie = F(2.0**-24)  # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24 lies between two floats
    assert fma(one, one, F(0)) == F(1 + 2.0**-11)
    assert fma(one, one, tiny) == F(1 + 2.0**-11 + 2.0**-23)
    assert fma(one, one, -tie) == F(1 + 2.0**-11)
    assert fma(F(-1), one, ONE) == F(-(2.0**-12))
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-(2**20), 2**20, 10**5) for _ in range(3))
    exact = [int(x) * int(y) + int(z) * 2**12 for x, y, z in zip(a, b, c, strict=True)]
    assert np.array_equal(fma(F(a), F(b), F(c) * F(2**12)), np.array(exact).astype(F))


def divisors(rng, n):
    """All mantissas, and exponents from -23 to 1, subnormal numbers times 2^126 among them."""
    b = rng.uniform(1, 2, n).astype(F) * F(2) ** rng.integers(-23, 2, n).astype(F)
    few_bits = F(rng.integers(1, 2**12, n)) * F(2.0**-23)
    return np.where(rng.random(n) < 0.2, few_bits, b)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_quotients_by_a_kept_reciprocal_are_rounded_once(seed):
    rng = np.random.default_rng(seed)
    b = divisors(rng, 10**6)
    a = np.minimum(b * F(2) ** rng.uniform(-26, 0, len(b)).astype(F), b)
    assert np.array_equal(divided(a, b), a / b)
    assert np.array_equal(divided(b, b), np.ones_like(b))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_even_next_to_the_middle_between_two_floats(seed):
    rng = np.random.default_rng(seed)
    b = divisors(rng, 10**6)
    between = (2 * rng.integers(2**23, 2**24, len(b)) + 1) * 2.0**-25  # odd, of 25 bits
    between *= 2.0 ** -rng.integers(0, 26, len(b))
    a = (between * b).astype(F)
    for nearby in (a, np.nextafter(a, F(0)), np.minimum(np.nextafter(a, b), b)):
        assert np.array_equal(divided(nearby, b), nearby / b)


@pytest.mark.slow
def test_of_all_mantissas_of_a_divisor():
    b = np.arange(2**23, 2**24, dtype=np.int64).astype(F) * F(2.0**-23)
    for a in (ONE, np.nextafter(ONE, F(0)), F(2 / 3), F(0.1)):
        assert np.array_equal(divided(a, b), a / b)


def test_what_is_too_small_for_any_code_stays_so():
    b = divisors(np.random.default_rng(0), 10**5)
    for share in (2.0**-26, 2.0**-60, 2.0**-140, 0.0):
        assert (divided(b * F(share), b) <= 2.0**-25).all()


def codes_over(full):
    code = np.arange(full + 1, dtype=np.int64).astype(F)
    inverse, rest = map(F, reciprocal(full))
    return code, fma(code, inverse, code * rest)


@pytest.mark.parametrize(
    "bits", [*range(1, 20), *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 25))]
)
def test_codes_over_the_full_code_are_rounded_once(bits):
    for full in (2**bits - 1, 2**bits):
        code, found = codes_over(full)
        assert np.array_equal(found, code / F(full))


@pytest.mark.parametrize("bits", range(1, 25))
def test_a_reciprocal_lies_above_its_first_part(bits):
    for full in (2**bits - 1, 2**bits):
        inverse, rest = reciprocal(full)
        assert F(inverse) == inverse
        assert rest >= 0  # so that a code of minus zero stays minus zero
