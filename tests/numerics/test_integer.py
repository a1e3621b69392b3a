"""Fixed point rounds and overflows as its codes do: shown for every half-precision number."""

import functools
import itertools
import pickle
from dataclasses import replace
from fractions import Fraction
from math import floor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chop.numerics import check_keys, from_config, from_precision, fused
from chop.numerics.integer import Integer

ROUNDINGS = ("even", "up", "floor")
OVERFLOWS = ("saturate", "symmetric", "wrap")
ROUND = {
    "even": round,
    "up": lambda value: floor(value + Fraction(1, 2)),
    "floor": floor,
}


def patterns(dtype):
    """Every finite number of a dtype of 16 bits."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return x[x.isfinite()]


@functools.cache
def integers(rounding, frac_width, dtype):
    """The codes before overflow, as Python computes them: exactly, as numbers have 11 bits."""
    unit, up = 2.0**frac_width, 0.5 if rounding == "up" else 0.0
    whole = round if rounding == "even" else floor
    return [whole(value * unit + up) for value in patterns(dtype).tolist()]


def overflowed(code, fmt):
    """The definition: modulo 2^width, or the nearest end."""
    low, high = fmt.codes
    if fmt.overflow == "wrap":
        return low + (code - low) % 2**fmt.width
    return min(max(code, low), high)


def wanted(fmt, dtype):
    codes = integers(fmt.rounding, fmt.frac_width, dtype)
    unit = 2.0**-fmt.frac_width
    return torch.tensor([overflowed(code, fmt) * unit for code in codes], dtype=torch.float64)


WIDTHS = [(8, 4), (4, 2), (1, 0), (12, -3), (6, 9), (16, 20)]
ALL = [
    Integer(width, frac, signed, rounding, overflow)
    for (width, frac), signed, rounding, overflow in itertools.product(
        WIDTHS, (True, False), ROUNDINGS, OVERFLOWS
    )
    if width > 1 or not signed or overflow != "symmetric"
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("mode", ["off", "on"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fmt", ALL, ids=repr)
def test_every_half_is_rounded_as_its_code_is(fmt, dtype, mode):
    before = fused.fused_mode()
    fused.set_fused(mode)  # with and without the C++ library
    try:
        found = fmt(patterns(dtype).float())
    finally:
        fused.set_fused(before)
    assert torch.equal(found.double(), wanted(fmt, dtype))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fmt", ALL, ids=repr)
def test_half_precision_itself_has_the_same_results(fmt):
    found = fmt(patterns(torch.float16)).double()
    highest = torch.finfo(torch.float16).max
    assert torch.equal(found, wanted(fmt, torch.float16).clamp(-highest, highest).half().double())


# what is at stake in float32 and in float64: ties, their neighbours, odd numbers without a fraction
TIES = {
    torch.float32: [0.49999997, 0.5, 8388607.5, 8388609.0, 4194304.5, 4194303.75, 2.0**-140],
    torch.float64: [0.49999999999999994, 0.5, 4503599627370497.0, 2251799813685248.5, 2.0**-1060],
}  # fmt: skip


@pytest.mark.parametrize("dtype", TIES, ids=str)
@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_ties_and_their_neighbours(rounding, overflow, dtype):
    x = torch.tensor(TIES[dtype] + [-value for value in TIES[dtype]], dtype=dtype)
    for width, frac_width in ((64, 0), (8, 0), (8, 1), (5, -2)):
        fmt = Integer(width, frac_width, rounding=rounding, overflow=overflow)
        codes = [
            overflowed(ROUND[rounding](Fraction(value) * Fraction(2) ** frac_width), fmt)
            for value in x.tolist()
        ]
        assert fmt(x).tolist() == [code * 2.0**-frac_width for code in codes]


@given(
    fmt=st.builds(
        lambda width, frac_width, signed, rounding, overflow: Integer(
            max(width, 2) if signed and overflow == "symmetric" else width,
            *(frac_width, signed, rounding, overflow),
        ),
        st.integers(1, 52),
        st.integers(-60, 60),
        st.booleans(),
        st.sampled_from(ROUNDINGS),
        st.sampled_from(OVERFLOWS),
    ),
    x=st.floats(allow_nan=False, allow_infinity=False),
)
def test_any_double_is_rounded_as_its_code_is(fmt, x):
    code = overflowed(ROUND[fmt.rounding](Fraction(x) * Fraction(2) ** fmt.frac_width), fmt)
    assert fmt(x) == code * 2.0**-fmt.frac_width


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "on"])
@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_millions_of_singles_are_rounded_as_in_float64(rounding, overflow, mode):
    """All codes of the format in float64, with every tie, and singles of any bits."""
    before = fused.fused_mode()
    fused.set_fused(mode)
    ties = torch.arange(-(2**18), 2**18) / 32
    below, above = (torch.nextafter(ties, torch.tensor(end)) for end in (-1e9, 1e9))
    bits = torch.randint(-(2**31), 2**31, (2**21,)).to(torch.int32).view(torch.float32)
    x = torch.cat([ties, below, above, bits[bits.isfinite()]])
    try:
        for width, frac_width, signed in ((8, 4, True), (12, 3, False), (16, -2, True)):
            fmt = Integer(width, frac_width, signed, rounding, overflow)
            assert torch.equal(fmt(x).double(), fmt(x.double()))
    finally:
        fused.set_fused(before)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_infinities_become_the_ends_and_nan_stays(rounding, overflow, signed):
    fmt = Integer(8, 4, signed, rounding, overflow)
    y = fmt(torch.tensor([-torch.inf, torch.inf, torch.nan]))
    assert y[:2].tolist() == list(fmt.range)
    assert y[2].isnan()


def test_symmetric_ends():
    fmt = Integer(8, 4, overflow="symmetric")
    assert fmt.codes == (-127, 127)
    assert fmt.range == (-7.9375, 7.9375)
    assert fmt.largest == 7.9375
    assert len(fmt.values()) == 255
    assert fmt(torch.tensor([-8.0, -100.0, 100.0])).tolist() == [-7.9375, -7.9375, 7.9375]


def test_symmetric_needs_two_bits():
    text = "integer: overflow 'symmetric' needs at least 2 bits"
    with pytest.raises(ValueError, match=text):
        Integer(1, 0, overflow="symmetric")
    assert Integer(2, 0, overflow="symmetric").codes == (-1, 1)
    assert Integer(1, 0, signed=False, overflow="symmetric").codes == (0, 1)


def test_an_error_shows_what_was_given():
    config = {"name": "integer", "data_in_width": 8, "data_in_frac_width": 3}
    config |= {"data_in_signed": False, "data_in_rounding": "nearest"}
    shown = "data_in_width = 8, data_in_frac_width = 3, data_in_signed = False"
    with pytest.raises(ValueError, match=rf"\(got {shown}, data_in_rounding = 'nearest'\)$"):
        from_config(config, "data_in")


def test_symmetric_without_a_sign_saturates():
    fmt = Integer(8, 4, overflow="symmetric").for_operand("data_in", non_negative=True)
    x = torch.randn(1000) * 10
    assert fmt.codes == (0, 255)
    assert torch.equal(fmt(x), Integer(8, 4, signed=False)(x))


@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_gradients(rounding, overflow):
    """Identity passes everything, clip what lies in the range, even where values wrap."""
    fmt = Integer(8, 4, rounding=rounding, overflow=overflow)
    x = torch.tensor([-100.0, -8.0, -7.9375, 0.03, 7.9375, 7.95, 100.0], requires_grad=True)
    for ste, inside in (("identity", torch.ones(7)), ("clip", (x >= fmt.range[0]) & (x <= 7.9375))):
        (grad,) = torch.autograd.grad(replace(fmt, ste=ste)(x).sum(), x)
        assert torch.equal(grad, inside.float())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["off", "on"])
@pytest.mark.parametrize("fmt", ALL, ids=repr)
def test_gradients_of_every_half(fmt, mode):
    before = fused.fused_mode()
    fused.set_fused(mode)
    try:
        for dtype, ste in itertools.product((torch.float16, torch.bfloat16), ("identity", "clip")):
            x = patterns(dtype).float().requires_grad_()
            slope = torch.arange(x.numel()) % 7 - 3.0
            (grad,) = torch.autograd.grad(replace(fmt, ste=ste)(x), x, slope)
            inside = (x >= fmt.range[0]) & (x <= fmt.range[1]) if ste == "clip" else True
            assert torch.equal(grad, slope * inside)
    finally:
        fused.set_fused(before)


class TestFloor:
    """`floor` is another way to write `rounding = "floor"`."""

    def test_it_is_the_same_format(self):
        assert Integer(8, 4, floor=True) == Integer(8, 4, rounding="floor")
        assert Integer(8, 4, floor=False) == Integer(8, 4) == Integer(8, 4, rounding="even")
        assert Integer(8, 4, floor=True, rounding="floor").floor
        assert hash(Integer(8, 4, floor=True)) == hash(Integer(8, 4, rounding="floor"))

    def test_a_copy_may_round_another_way(self):
        assert replace(Integer(8, 4, floor=True), rounding="up") == Integer(8, 4, rounding="up")

    @pytest.mark.parametrize(
        ("floor", "rounding"), [(True, "even"), (True, "up"), (False, "floor"), (1, "up")]
    )
    def test_another_rounding_beside_it_is_refused(self, floor, rounding):
        with pytest.raises(ValueError, match="contradicts rounding; leave floor out") as error:
            Integer(8, 4, rounding=rounding, floor=floor)
        assert str(error.value).startswith(f"integer: floor = {str(bool(floor)).lower()} ")

    def test_a_config_is_told_its_own_keys(self):
        config = {"name": "integer", "weight_width": 8, "weight_frac_width": 4}
        config |= {"weight_floor": True, "rounding": "up"}
        check_keys(config, ["weight"], [])
        with pytest.raises(ValueError, match="weight_floor = true contradicts rounding; leave w"):
            from_config(config, "weight")

    def test_a_pickle_from_before_rounding_loads(self):
        fmt = Integer(8, 4)
        state = {"width": 8, "frac_width": 4, "signed": True, "floor": True, "ste": "clip"}
        fmt.__setstate__(state | {"_edges": {}})
        assert fmt == Integer(8, 4, rounding="floor", ste="clip")
        assert pickle.loads(pickle.dumps(fmt)) == fmt
        assert torch.equal(fmt(torch.tensor([-0.01])), torch.tensor([-0.0625]))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rounding": "down"}, "rounding must be 'even', 'up' or 'floor'"),
        ({"rounding": 1}, "rounding must be 'even', 'up' or 'floor'"),
        ({"rounding": ["even", "up"]}, "rounding must be 'even', 'up' or 'floor'"),
        ({"overflow": "clip"}, "overflow must be 'saturate', 'symmetric' or 'wrap'"),
        ({"overflow": None}, "overflow must be 'saturate', 'symmetric' or 'wrap'"),
        ({"overflow": True}, "overflow must be 'saturate', 'symmetric' or 'wrap'"),
    ],
)
def test_other_words_are_refused_in_one_sentence(options, text):
    with pytest.raises(ValueError, match=f"^integer: {text} \\(got [^\n]*\\)$"):
        Integer(8, 4, **options)
    config = {"name": "integer", "weight_width": 8, "weight_frac_width": 4}
    config |= {f"weight_{key}": value for key, value in options.items()}
    with pytest.raises(ValueError, match=f"^integer: weight_{text} \\(got [^\n]*\\)$"):
        from_config(config, "weight")


def test_a_fraction_to_be_calibrated_needs_data():
    text = (
        r"^integer: frac_width is 'calibrated', which needs data; use quantize_transform_pass, or"
    )
    with pytest.raises(ValueError, match=text):
        Integer(8, "calibrated")
    config = {"name": "integer", "weight_width": 8, "weight_frac_width": "calibrated"}
    with pytest.raises(
        ValueError, match=r"^integer: weight_frac_width is 'calibrated', which need"
    ):
        from_config(config, "weight")


def test_a_fraction_that_is_missing_may_be_chosen_in_three_ways():
    text = 'missing .\'weight_frac_width\'. in .*; give a number, "calibrated", or "NA" for half'
    with pytest.raises(ValueError, match=text):
        from_config({"name": "integer", "weight_width": 8}, "weight")


def test_each_operand_may_round_and_overflow_its_own_way():
    config = {"name": "integer", "weight_width": 8, "weight_frac_width": 4, "rounding": "up"}
    config |= {"weight_rounding": "floor", "weight_overflow": "symmetric", "overflow": "wrap"}
    config |= {"data_in_width": 6, "data_in_frac_width": 3}
    assert from_config(config, "weight") == Integer(8, 4, True, "floor", "symmetric")
    assert from_config(config, "bias") == Integer(8, 4, True, "floor", "symmetric")
    assert from_config(config, "data_in") == Integer(6, 3, True, "up", "wrap")


def test_options_that_metadata_show_are_those_beyond_the_default():
    assert Integer(8, 4, False, ste="clip").shown_options == {}
    fmt = Integer(8, 4, rounding="up", overflow="wrap")
    assert fmt.shown_options == {"rounding": "up", "overflow": "wrap"}
    assert from_precision(fmt.name, fmt.precision, **fmt.shown_options) == fmt
