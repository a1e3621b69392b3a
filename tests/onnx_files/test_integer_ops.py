"""Single ops of the format `integer`, with codes at the limits of what the integer graph allows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from chop.integers import (
    AvgPoolCodes,
    ClampCodes,
    Codes,
    ConvCodes,
    LeakyReluCodes,
    LinearCodes,
    MaxPoolCodes,
    MultiplyCodes,
    PadCodes,
    ReluCodes,
    Requantize,
    Scale,
    TooWide,
    Word,
)
from chop.methods.lutnet.ops import ResidualSigns
from chop.numerics.affine import Affine
from chop.numerics.integer import Integer
from tests.integers import test_mixed
from tests.integers.checking import OVERFLOWS, ROUNDINGS
from tests.onnx_files.integer_checks import op_results


def described(x, scale=None):
    """Codes known by the largest of them alone."""
    most = int(x.abs().max())
    ends = torch.tensor([-most - 1, most])
    return Codes.reaching(x.shape[1:], ends[0], ends[1], scale or Scale.power(0))


def wrong(op, x, scale=None):
    codes = described(x, scale)
    op = op.fitted(codes)
    return int((op_results(op, [codes], [x]) != op.run(x)).sum())


whole = st.integers(-(2**61), 2**61) | st.integers(-(2**33), 2**33) | st.integers(-99, 99)
wholes = st.lists(whole, min_size=1, max_size=20)


@given(
    numbers=wholes,
    exponent=st.integers(-70, 20),
    divisor=st.sampled_from([1, 2, 3, 9, 49, 100]),
    width=st.integers(1, 24) | st.sampled_from([31, 32, 33, 48]),
    frac=st.integers(-8, 30),
    signed=st.booleans(),
    rounding=st.sampled_from(ROUNDINGS),
    overflow=st.sampled_from(OVERFLOWS),
)
def test_fixed_point_of_any_width_is_rounded_alike(
    numbers, exponent, divisor, width, frac, signed, rounding, overflow
):
    width = max(width, 2) if signed and overflow == "symmetric" else width
    fmt = Integer(width, frac, signed=signed, rounding=rounding, overflow=overflow)
    try:
        count = wrong(
            Requantize(Word.of(fmt.grid())),
            torch.tensor(numbers)[:, None],
            Scale.power(exponent).divided(divisor),
        )
    except TooWide:
        return
    assert count == 0


@given(
    numbers=st.lists(st.integers(-(2**58), 2**58) | st.integers(-9999, 9999), min_size=1),
    scale=st.floats(2.0**-40, 0.875, width=32),
    target=st.floats(2.0**-6, 2.0, width=32),
    width=st.integers(2, 16),
    point=st.integers(0, 1),
)
def test_float_scales_are_multiplied_alike(numbers, scale, target, width, point):
    word = Word.of(Affine(width, scale=target, zero_point=point).grid())
    try:
        count = wrong(Requantize(word), torch.tensor(numbers)[:, None], Scale.of(scale))
    except TooWide:
        return
    assert count == 0


@pytest.mark.parametrize("divisor", [1, 9])
@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_shifts_and_divisors_may_differ_by_channel(rounding, overflow, divisor):
    exponents = torch.tensor([-9, -4, 0, 3, 30, -3])
    divisors = torch.tensor([1, divisor, 1, divisor, divisor, 3])
    fmt = Integer(10, 3, rounding=rounding, overflow=overflow)
    source = torch.Generator().manual_seed(0)
    x = torch.randint(-2000, 2000, (500, 6), generator=source)
    assert wrong(Requantize(Word.of(fmt.grid())), x, Scale.power(exponents).divided(divisors)) == 0
    far = Scale.power(torch.tensor([-9, -70, 0, 3, -64, -2]))
    assert wrong(Requantize(Word.of(fmt.grid())), x, far) == 0


@given(test_mixed.formats, test_mixed.pairs, st.integers(-4, 9), st.integers(2, 40))
def test_words_that_differ_by_element_are_rounded_alike(fmt, bits, fraction, width):
    word, _ = test_mixed.words_of(fmt, bits)
    top = 2**width
    x = torch.randint(-top, top, (60, len(bits)), generator=torch.Generator().manual_seed(0))
    assert wrong(Requantize(word), x, Scale.power(-fraction)) == 0


def weights(rows, columns, width, seed=1):
    top = 2 ** (width - 1)
    source = torch.Generator().manual_seed(seed)
    drawn = torch.randint(-top, top, (rows, columns), generator=source)
    drawn[0, :] = -top  # all lowest, and all highest
    drawn[1, :] = top - 1
    return drawn


def inputs(count, width, low=None):
    """Random codes, and the extremes."""
    top = 2 ** (width - 1)
    low = -top if low is None else low
    source = torch.Generator().manual_seed(0)
    x = torch.randint(low, low + 2 * top, (40, count), generator=source)
    x[0], x[1] = low, low + 2 * top - 1
    return x


@pytest.mark.parametrize("low", [None, 0, -3])
@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 16, 17, 30])
@pytest.mark.parametrize("weight_width", [2, 7, 8, 9, 16, 24])
def test_operands_of_any_width_give_the_same_sums(width, weight_width, low):
    x = inputs(37, width, low)
    ends = torch.tensor([int(x.min()), int(x.max())])
    codes = Codes.reaching((37,), ends[0], ends[1], Scale.power(0))
    weight = weights(5, 37, weight_width)
    for bias, shift in ((None, 0), (torch.arange(5) * 1000 - 7, 3)):
        op = LinearCodes(weight, bias, Scale.power(0), weight_width, shift).fitted(codes)
        assert torch.equal(op_results(op, [codes], [x]), op.run(x))
    pixels, shape = x[:, :36].reshape(40, 4, 3, 3), (4, 3, 3)
    codes = Codes.reaching(shape, ends[0], ends[1], Scale.power(0))
    places = {"stride": (1, 2), "padding": (1, 0), "dilation": (1, 1), "groups": 2}
    kernels = weight[:4, :8].reshape(4, 2, 2, 2)
    op = ConvCodes(kernels, None, Scale.power(0), weight_width, **places).fitted(codes)
    assert torch.equal(op_results(op, [codes], [pixels]), op.run(pixels))


@pytest.mark.parametrize("weight_width", [8, 16])
def test_sums_beyond_int32_are_split(weight_width):
    """100,000 products of the largest bytes have 33 bits."""
    count = 100_000
    x = torch.full((3, count), 255)
    x[1], x[2] = 0, torch.arange(count) % 256
    codes = Codes.reaching((count,), torch.tensor(0), torch.tensor(255), Scale.power(0))
    weight = weights(3, count, weight_width)
    op = LinearCodes(weight, None, Scale.power(0), weight_width).fitted(codes)
    assert op.reach > 2**31
    assert torch.equal(op_results(op, [codes], [x]), op.run(x))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("width", [6, 20, 34, 55, 60])
def test_pools_of_any_rank_give_the_same_codes(rank, ceil, width):
    top = 2 ** (width - 1)
    shape = (30, 2, *(7, 6, 5)[:rank])
    x = torch.randint(-top, top, shape, generator=torch.Generator().manual_seed(0))
    sides = ((3, 2, 3)[:rank], (2, 3, 1)[:rank], (1, 1, 0)[:rank])
    largest = MaxPoolCodes(*sides, dilation=(1, 2, 2)[:rank], ceil=ceil)
    assert wrong(largest, x) == 0
    assert wrong(MaxPoolCodes(shape[2:], (1,) * rank, (0,) * rank, (1,) * rank), x) == 0
    if width < 60:  # whose sums have more than 63 bits
        assert wrong(AvgPoolCodes(*sides, ceil=ceil), x) == 0
        assert wrong(AvgPoolCodes(shape[2:], (1,) * rank, (0,) * rank), x) == 0


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_paddings_give_the_same_codes(mode):
    x = torch.randint(-(2**40), 2**40, (5, 2, 4, 5), generator=torch.Generator().manual_seed(0))
    assert wrong(PadCodes((1, 2, 3, 0), mode, code=7 if mode == "constant" else 0), x) == 0
    if mode == "constant":
        assert wrong(PadCodes((-1, 2, 0, -2), mode), x) == 0


@pytest.mark.parametrize("top", [2**7, 2**31, 2**33, 2**40])
def test_ops_on_each_code_give_the_same_codes_beyond_int32(top):
    x = torch.randint(-top, top, (500, 3), generator=torch.Generator().manual_seed(0))
    for op in (
        ClampCodes(-5, 9),
        ClampCodes(-(2**45), 2**45),
        ClampCodes(top, 2 * top),
        ReluCodes(),
        LeakyReluCodes(-1, 100),
        ResidualSigns(torch.tensor([-(2**50), -4, 2**50])),
        ResidualSigns(torch.tensor([0])),
    ):
        assert wrong(op, x) == 0
    if top < 2**31:
        codes = described(x)
        found = op_results(MultiplyCodes(), [codes, codes], [x, x.flip(0)])
        assert torch.equal(found, x * x.flip(0))
