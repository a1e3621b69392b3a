"""Fixed point with bits that are trained: values like `integer`, gradients like the expectation."""

import itertools
import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from chop.numerics.compiled import KERNELS
from chop.numerics.fast.learned import LearnedRule, places_of
from chop.numerics.fast.learned_reference import rounded_fixed
from chop.numerics.fast.rules import LN2
from chop.numerics.fused import fused_mode, set_fused
from chop.numerics.integer import Integer
from chop.numerics.learned import (
    _LearnedFixed,
    enough_bits,
    fixed,
    learned_fixed,
    own_widths,
    whole,
)
from chop.numerics.mixed_integer import MixedInteger
from chop.numerics.mixed_rounding import MixedRounding, integer_bits_for

numbers = st.floats(-100, 100, width=32) | st.floats(width=32, allow_nan=False)
ROUNDINGS, OVERFLOWS = ("even", "up", "floor"), ("saturate", "symmetric", "wrap")
rules = st.tuples(st.booleans(), st.sampled_from(ROUNDINGS), st.sampled_from(OVERFLOWS))


def bits(*values):
    return torch.tensor([float(value) for value in values])


@given(st.lists(numbers, min_size=1, max_size=16), st.integers(1, 40), st.integers(-60, 60), rules)
@settings(max_examples=200, deadline=None)
def test_the_values_are_those_of_integer(values, width, f, rule):
    signed, rounding, overflow = rule
    x = torch.tensor(values)
    got = learned_fixed(
        x, bits(width - f), bits(f), signed=signed, rounding=rounding, overflow=overflow
    )
    assert torch.equal(got, Integer(width + signed, f, signed, rounding, overflow)(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number_of_no_bits_is_zero_and_has_no_gradients(dtype):
    x = torch.tensor([3.0, -0.2, math.nan], dtype=dtype, requires_grad=True)
    i, f = bits(-2).requires_grad_(), bits(2).requires_grad_()
    y = learned_fixed(x, i, f)
    assert y[:2].tolist() == [0, 0]
    assert y[2].isnan()
    y[:2].sum().backward()
    assert not any(t.grad.any() for t in (x, i, f))


@pytest.mark.parametrize("rounding", ["even", "up"])
@pytest.mark.parametrize("f", [1.0, 3.0])
def test_the_gradient_for_the_fraction_is_that_of_the_expected_error(f, rounding):
    """Of E (x - x^q)², over offsets that are uniform in a step; finite differences in a real f."""
    offsets = torch.linspace(-0.4999, 0.4999, 10_001, dtype=torch.float64)
    x = (torch.arange(-8.0, 8.0).unsqueeze(1) + offsets) * 2.0**-f

    def expected(fraction):
        return ((offsets - torch.round(offsets)) * 2.0**-fraction).square().mean()

    fraction = torch.tensor(f, dtype=torch.float64, requires_grad=True)
    rounded = learned_fixed(x, torch.tensor(4.0), fraction, rounding=rounding)
    ((x - rounded) ** 2).mean().backward()
    difference = (expected(f + 0.01) - expected(f - 0.01)) / 0.02
    assert fraction.grad.item() == pytest.approx(difference.item(), rel=0.01)
    assert fraction.grad.item() == pytest.approx(-2 * LN2 * 4.0**-f / 12, rel=0.01)


@pytest.mark.parametrize("overflow", ["saturate", "symmetric"])
@pytest.mark.parametrize("x", [9.0, -9.0])
def test_beyond_the_range_the_gradients_are_those_of_its_ends(x, overflow):
    i, f = bits(2).requires_grad_(), bits(3).requires_grad_()
    value = torch.tensor([x], requires_grad=True)
    learned_fixed(value, i, f, overflow=overflow).sum().backward()

    def end(i, f):
        high = 2.0**i - 2.0**-f
        return high if x > 0 else -high if overflow == "symmetric" else -(2.0**i)

    assert value.grad.item() == 0
    assert i.grad.item() == pytest.approx((end(2.001, 3) - end(1.999, 3)) / 0.002, rel=1e-5)
    assert f.grad.item() == pytest.approx((end(2, 3.001) - end(2, 2.999)) / 0.002, abs=1e-5)


def test_bits_that_broadcast_get_the_sum_of_the_gradients():
    x = torch.randn(5, 4, 3, requires_grad=True)
    one = [bits(2).requires_grad_(), bits(1).requires_grad_()]
    all_of_them = [t.detach().expand(5, 4, 3).clone().requires_grad_() for t in one]
    for pair in (one, all_of_them):
        (learned_fixed(x, *pair) ** 2).sum().backward()
    for single, full in zip(one, all_of_them, strict=True):
        assert torch.allclose(single.grad, full.grad.sum().view(1))


def test_many_networks_round_as_each_alone():
    x, i, f = torch.randn(6, 5), torch.randn(6, 1) + 1, torch.randn(6, 5) + 2
    together = torch.vmap(learned_fixed)(x, i, f)
    assert torch.equal(
        together, torch.stack([learned_fixed(*row) for row in zip(x, i, f, strict=True)])
    )


def test_bits_are_rounded_and_their_gradient_passes():
    b = torch.tensor([1.4, 2.6], requires_grad=True)
    (whole(b) * 3).sum().backward()
    assert whole(b).tolist() == [1, 3]
    assert b.grad.tolist() == [3, 3]


@given(st.lists(numbers, min_size=1, max_size=12), st.integers(-20, 20), st.sampled_from(ROUNDINGS))
@settings(max_examples=100, deadline=None)
def test_integer_bits_are_the_fewest_that_clip_nothing(values, f, rounding):
    x = torch.tensor(values).clamp(-1e9, 1e9).double()
    fmt = MixedInteger(8, 4, rounding=rounding, overflow="symmetric")
    i = integer_bits_for(x, torch.full_like(x, f), fmt)
    got = MixedRounding(fmt, torch.full_like(x, f), i)(x)
    wide = Integer(60, f, rounding=rounding)(x)
    assert torch.equal(got, wide)
    fewer = MixedRounding(fmt, torch.full_like(x, f), i - 1)(x)
    assert ((fewer != wide) | (i + f == 0)).all()
    assert torch.equal(i + f == 0, wide == 0)


@pytest.mark.parametrize("shape", [(), (3, 1), (3, 4)])
def test_groups_share_their_integer_bits(shape):
    x, fmt = torch.randn(3, 4) * 5, MixedInteger(8, 4)
    i = integer_bits_for(x, torch.full(shape, 2.0), fmt)
    assert i.shape == shape
    largest = integer_bits_for(x, torch.full((3, 4), 2.0), fmt)
    over = {(): largest.max(), (3, 1): largest.amax(1, True), (3, 4): largest}[shape]
    assert torch.equal(i, over)


def test_weights_that_are_rounded_to_zero_still_have_gradients():
    w, f = torch.tensor([0.1, 0.9], requires_grad=True), bits(1, 1).requires_grad_()
    y = MixedRounding(MixedInteger(8, 4, granularity="element", learn=True), f)(w)
    assert y.tolist() == [0, 1]
    y.sum().backward()
    assert w.grad.tolist() == [1, 1]
    assert f.grad.tolist() == pytest.approx([LN2 * 0.1, LN2 * -0.1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_so(dtype):
    x = torch.randn(4, dtype=dtype, requires_grad=True)
    f = bits(2).requires_grad_()
    y = MixedRounding(MixedInteger(8, 4, learn=True), f, bits(2))(x)
    assert y.dtype == dtype
    assert torch.equal(y.float(), learned_fixed(x.float(), bits(2), f))
    y.sum().backward()
    assert x.grad.dtype == dtype


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"granularity": "row"}, "granularity must be 'tensor', 'channel' or 'element'"),
        ({"width": 1}, "width must be at least 2 with a sign"),
        ({"sample_shape": [3, 0]}, "sample_shape must be a list of positive integers"),
        ({"mean_width": -1.0}, "mean_width must be a number from 0 to 64"),
        ({"rounding": "down"}, "rounding must be"),
    ],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises(ValueError, match=f"^mixed_integer: {text}"):
        MixedInteger(**{"width": 8, "frac_width": 4} | options)


def test_the_format_of_bits_holds_all_of_them():
    fmt = MixedInteger(8, 4, granularity="element")
    used = fmt.with_bits(torch.tensor([2.0, -1, 3, -4]), torch.tensor([3.0, 4, 0, 2]), (4,))
    assert (used.width, used.frac_width) == (3 + 4 + 1, 4)
    assert used.bits == (6 + 4 + 4 + 0) / 4
    dead = fmt.with_bits(torch.tensor([-4.0]), torch.tensor([2.0]), (1,))
    assert dead.bits == 0


SHAPES = [
    *(((4, 3, 5, 7), (3, 1, 1)), ((4, 3, 5, 7), (3, 5, 7)), ((4, 3, 5, 7), ()), ((16, 9), (16, 9))),
    *(((16, 9), (16, 1)), ((16, 9), (9,)), ((40,), (40,)), ((4, 3, 5), (3, 1)), ((), ())),
]


@pytest.fixture
def kernels():
    if not KERNELS.ready(1, wait=True):
        pytest.skip("there is no C++ compiler")
    before = fused_mode()
    set_fused("on")
    yield
    set_fused(before)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("signed", [True, False])
def test_the_kernel_gives_the_bits_of_the_reference(kernels, rounding, overflow, signed):
    torch.manual_seed(0)
    for (shape, of_bits), limited in itertools.product(SHAPES, (True, False)):
        x = torch.randn(shape) * 4
        i, f = torch.randn(of_bits) * 2 + 1, torch.randn(of_bits) * 2 + 2
        odd = x.clone().view(-1)
        odd[:6] = torch.tensor([math.inf, -math.inf, math.nan, 0.5, -0.5, 2.5])[: odd.numel()]
        used, rule = i if limited else enough_bits(f), (signed, rounding, overflow)
        got = fixed(odd.view(shape), i if limited else None, f, *rule)
        wanted = rounded_fixed(odd.view(shape), used, f, *rule)
        assert torch.equal(got.nan_to_num(9), wanted.nan_to_num(9))
        _same_gradients(x, i if limited else None, used, f, rule)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_the_kernel_counts_the_bits_that_elements_need(kernels, rounding, signed):
    torch.manual_seed(0)
    tiny = [0.0, -0.0, 2.0**-130, -(2.0**-126), 1e30, -0.75]
    x = torch.cat([torch.randn(3000) * 4, torch.tensor(tiny)])
    f = torch.cat([torch.randn(3000) * 3 + 2, torch.tensor([3.0, -2.0, 131.0, 127.0, 0.0, 1.0])])
    f.requires_grad_()
    fmt = MixedInteger(8, 4, signed=signed, rounding=rounding)
    n = own_widths(x, f, signed, rounding)
    wanted = (integer_bits_for(x, f, fmt) + f.detach().round()).clamp(min=0)
    assert torch.equal(n, wanted)
    weight = torch.randn(len(x))
    (n * weight).sum().backward()
    assert torch.equal(f.grad, weight * (wanted > 0))


def test_widths_of_groups_are_left_to_the_reference(kernels):
    assert own_widths(torch.randn(4, 3), torch.ones(4, 1), True, "even") is None
    assert own_widths(torch.randn(4, 3).double(), torch.ones(4, 3), True, "even") is None


def _same_gradients(x, i, used, f, rule):
    grad, results = torch.randn(x.shape), []
    for by_kernel in (True, False):
        tensors = [t.clone().requires_grad_() for t in (x, used, f)]
        if by_kernel:
            own = None if i is None else tensors[1]
            keys = dict(zip(("signed", "rounding", "overflow"), rule, strict=True))
            y = learned_fixed(tensors[0], own, tensors[2], **keys)
            assert type(y.grad_fn).__name__ == "_FusedFixedBackward"
        else:
            y = _LearnedFixed.apply(*tensors, LearnedRule(*rule))
        y.backward(grad)
        results.append((y.detach(), *(t.grad for t in tensors if t.grad is not None)))
    assert all(map(torch.equal, results[0][:2], results[1][:2]))
    # sums of many terms are in another order
    for got, wanted in zip(results[0][2:], results[1][-len(results[0][2:]) :], strict=True):
        assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_many_networks_have_the_bits_and_gradients_of_each_alone(kernels, overflow, limited):
    torch.manual_seed(0)
    for shape, of_bits in SHAPES:
        x, grad = torch.randn(3, *shape) * 4, torch.randn(3, *shape)
        bits = [torch.randn(3, *of_bits) * 2 + 1 for _ in range(2)]

        def rounded(x, i, f):
            return learned_fixed(x, i if limited else None, f, overflow=overflow)

        results = []
        for together in (True, False):
            tensors = [t.clone().requires_grad_() for t in (x, *bits)]
            each = zip(*tensors, strict=True)
            y = (
                torch.vmap(rounded)(*tensors)
                if together
                else torch.stack([rounded(*t) for t in each])
            )
            y.backward(grad)
            results.append([y.detach(), *(t.grad for t in tensors if t.grad is not None)])
        assert all(map(torch.equal, results[0][:2], results[1][:2]))
        for got, wanted in zip(*(result[2:] for result in results), strict=True):
            assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-4)  # another order of sums


def test_bits_that_do_not_lie_in_order_have_gradients_of_their_own(kernels):
    x = torch.randn(40, 30)
    bits = (torch.arange(1200.0) % 5).view(30, 40).t()  # the kernel needs a copy of these
    found = []
    for mode in ("on", "off"):
        set_fused(mode)
        f = bits.clone(memory_format=torch.preserve_format).requires_grad_()
        assert not f.is_contiguous()
        learned_fixed(x, None, f).square().sum().backward()
        found.append(f.grad)
    set_fused("on")
    torch.testing.assert_close(*found)


def test_networks_that_share_their_numbers_are_rounded_each_with_its_bits(kernels):
    x, f = torch.randn(50, 4), torch.randn(3, 4) + 2
    i = torch.full((4,), 2.0)
    found = torch.vmap(learned_fixed, in_dims=(None, None, 0))(x, i, f)
    assert torch.equal(found, torch.stack([learned_fixed(x, i, each) for each in f]))
    moved = torch.vmap(learned_fixed, in_dims=(2, None, 1))(torch.stack([x] * 3, 2), i, f.T)
    assert torch.equal(moved, found)


@pytest.mark.parametrize("limited", [True, False])
def test_results_do_not_depend_on_the_default_dtype(kernels, limited):
    torch.manual_seed(0)
    x, f = torch.randn(40, 6), torch.full((40, 6), 2.0)
    i = torch.ones(40, 6) if limited else None

    def computed():
        numbers, fraction = x.clone().requires_grad_(), f.clone().requires_grad_()
        y = learned_fixed(numbers, i, fraction)
        y.square().sum().backward()
        widths = own_widths(x, f, True, "even")
        return y.detach(), numbers.grad, fraction.grad, widths

    expected = computed()
    torch.set_default_dtype(torch.float64)
    try:
        found = computed()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, found, expected))


def test_tensors_that_a_kernel_cannot_take_are_rounded_as_well(kernels):
    x, i, f = torch.randn(4, 6), torch.full((4, 1), 2.0), torch.full((6,), 3.0)
    assert places_of((4, 6, 5), (4, 1, 5)) is None
    assert torch.equal(learned_fixed(x, i, f), learned_fixed(x, i.expand(4, 6), f.expand(4, 6)))
    assert torch.equal(learned_fixed(x.T, i.T, f.view(6, 1)), learned_fixed(x, i, f).T)
    assert learned_fixed(x.double(), i, f).dtype == torch.float64
