"""The worked numbers of the specification, through the functions that notebooks call."""

import inspect
import math

import pytest
import torch

import chop.nn.quantizers
from chop.numerics import FORMATS
from chop.passes.graph.transforms.quantize import quantizers as q

MX_BLOCK = [1.97, 3.95, 0.97, -1.94, 1, 0.5, 0.3, 0.02]
IMAGE = [[[[-0.3, 0.0], [0.2, 0.5]]]]


@pytest.mark.parametrize(
    ("x", "signed", "unsigned", "narrow"),
    [
        (-10.0, -8.0, 0.0, -2.0), (-1.3, -1.3125, 0.0, -1.25), (-0.5, -0.5, 0.0, -0.5),
        (0.03125, 0.0, 0.0, 0.0), (0.09375, 0.125, 0.125, 0.0), (0.15625, 0.125, 0.125, 0.25),
        (1.2345, 1.25, 1.25, 1.25), (7.97, 7.9375, 8.0, 1.75), (9.0, 7.9375, 9.0, 1.75),
    ],
)  # fmt: skip
def test_integer(x, signed, unsigned, narrow):
    assert q.integer_quantizer(torch.tensor(x), 8, 4) == signed
    assert q.integer_quantizer(torch.tensor(x), 8, 4, is_signed=False) == unsigned
    assert q.integer_quantizer(torch.tensor(x), 4, 2) == narrow
    assert q.integer_quantizer(x, 8, 4) == signed  # a Python float


def test_a_python_integer_is_returned_as_it_is():
    assert q.integer_quantizer(1000, 8, 4) == 1000
    assert isinstance(q.integer_quantizer(1000, 8, 4), int)


def test_no_fraction_width_is_half_of_the_width():
    x = torch.randn(100)
    assert torch.equal(q.integer_quantizer(x, 8, None), q.integer_quantizer(x, 8, 4))


def test_integer_floor():
    x = torch.tensor([-0.03, 1.2345, -100.0, 100.0])
    assert q.integer_floor_quantizer(x, 8, 4).tolist() == [-0.0625, 1.1875, -8.0, 7.9375]


def test_integer_rounding_and_overflow():
    x = torch.tensor([-100.0, -1.53125, 0.03125, 8.0])
    assert q.integer_quantizer(x, 8, 4, rounding="up").tolist() == [-8.0, -1.5, 0.0625, 7.9375]
    wrapped = q.integer_quantizer(x, 8, 4, rounding="floor", overflow="wrap")
    assert wrapped.tolist() == [-4.0, -1.5625, 0.0, -8.0]
    assert q.integer_floor_quantizer(x, 8, 4, overflow="symmetric")[0] == -7.9375
    codes = q.integer_quantizer_for_hw(x, 8, 4, rounding="floor", overflow="wrap")
    assert codes.tolist() == [192, 231, 0, 128]


def test_integer_codes_for_hardware():
    codes = q.integer_quantizer_for_hw(torch.tensor([-1.3, 0.5, -0.0625, 7.99]), 8, 4)
    assert codes.tolist() == [235, 8, 255, 127]
    assert not codes.is_floating_point()


@pytest.mark.parametrize(
    ("low", "high", "fraction"), [(-3.2, 2.0, 5), (-0.3, 0.2, 7), (-1, 1, 6), (-1e9, 0, 0)]
)
def test_integer_fraction(low, high, fraction):
    assert q.integer_fraction(8, range(9), low, high) == fraction
    assert q.integer_fraction(8, [0, 4, 8], low, high) == max(c for c in (0, 4, 8) if c <= fraction)


@pytest.mark.parametrize(
    ("width", "expected"), [(4, [0.875, -1, 0.5, 0.25]), (8, [0.9921875, -1, 0.5, 0.296875])]
)
def test_scale_integer(width, expected):
    x = torch.tensor([1, -1, 0.5, 0.3])
    assert q.scale_integer_quantizer(x, width).tolist() == expected
    rows = q.scale_integer_quantizer(torch.stack([x, 2 * x]), width)
    assert rows.tolist() == [expected, [2 * value for value in expected]]


def test_unsigned_scale_integer():
    x = torch.tensor([1, -1, 0.5, 0.25])
    assert q.scale_integer_quantizer(x, 4, is_signed=False).tolist() == [0.9375, 0, 0.5, 0.25]


def test_scale_integer_knows_no_small_and_no_large_scale():
    x = torch.tensor([1.0, -1.0, 0.5, 0.25])
    for scale in (2.0**127, 2.0**-126):
        expected = q.scale_integer_quantizer(x, 4) * scale
        assert torch.equal(q.scale_integer_quantizer(x * scale, 4), expected)
    assert q.scale_integer_quantizer(torch.zeros(2, 3), 4).eq(0).all()
    assert q.scale_integer_quantizer(torch.tensor([1e-45, 0.0]), 4).isfinite().all()


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (1.2345, 1.25), (3.0, 3.0), (-10.0, -10.0), (7.93, 8.0), (0.5, 0.5), (1.0, 1.0),
        (2.0, 2.0), (240.0, 224.0), (1e9, 224.0), (2.0**-10, 2.0**-10), (1e-9, 0.0), (0.0, 0.0),
    ],
)  # fmt: skip
def test_minifloat_denorm(x, expected):
    assert q.minifloat_denorm_quantizer(torch.tensor(x), 8, 4, 7) == expected
    assert q.minifloat_denorm_quantizer(torch.tensor(-x), 8, 4) == -expected


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (1.3, 1.25), (0.03, 0.029296875), (0.0312, 0.03125), (1.97, 2.0), (0.97, 1.0), (3.95, 4.0),
        (7.97, 8.0), (0.001, 0.001953125), (0.0039, 0.00390625), (240.0, 240.0), (470.0, 480.0),
        (500.0, 480.0), (1000.0, 480.0), (1e-9, 0.0),
    ],
)  # fmt: skip
def test_minifloat_ieee(x, expected):
    assert q.minifloat_ieee_quantizer(torch.tensor(x), 8, 4, 7) == expected
    assert q.minifloat_ieee_quantizer(torch.tensor(-x), 8, 4) == -expected


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (-10.0, -8.0),
        (-1.3, -1.0),
        (0.0, 0.125),
        (0.03, 0.125),
        (-0.01, -0.125),  # the predecessor's epsilon flipped the sign
        (0.17, 0.125),  # and made this 0.25: log2 is -2.56, nearer to -3
        (0.18, 0.25),
        (0.36, 0.5),
        (1.2345, 1.0),
        (1.5, 2.0),
        (20.0, 16.0),
    ],
)
def test_log(x, expected):
    assert q.log_quantizer(torch.tensor(x), 4, 3) == expected
    assert q.log_quantizer(torch.tensor(x), 4, None) == expected


def test_the_border_of_log_is_the_square_root():
    root = torch.tensor(math.sqrt(2))  # in single precision, just below it
    assert root.item() ** 2 < 2
    above = torch.nextafter(root, torch.tensor(2.0))
    assert q.log_quantizer(torch.stack([root, above]), 4, 3).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([0.1, -0.2, 0.4, 0.9], [0.125, -0.25, 0.375, 0.875]),
        ([3, -0.01, 0.5, 1], [3, 0, 0.5, 1]),
        ([1, 0.5, 0.25, 0.1], [1, 0.5, 0.25, 0]),
        ([1, 0.5, 0.25, 0.1, 0.7], [1, 0.5, 0.25, 0, 0.75]),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
    ],
)
def test_block_fp(x, expected):
    x = torch.tensor(x, dtype=torch.float32)
    assert q.block_fp_quantizer(x, 4, block_size=[4]).tolist() == expected
    assert q.block_fp_quantizer(x, 4, block_size=4, skip_first_dim=False).tolist() == expected
    assert q.block_fp_quantizer(x[None], 4, block_size=[4]).tolist() == [expected]


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([100, 3, 0.5, -60], [96, 3, 0.5, -60]),
        ([0.1, -0.2, 0.4, 0.9], [0.1015625, -0.203125, 0.40625, 0.875]),
        ([0.01, 0.02, -0.03, 0.04], [0.009765625, 0.01953125, -0.029296875, 0.0390625]),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
    ],
)
def test_block_minifloat(x, expected):
    """Small maxima raise the bias, so that nothing is crushed to zero."""
    x = torch.tensor(x, dtype=torch.float32)
    assert q.block_minifloat_quantizer(x, 8, 4, 4, block_size=[4]).tolist() == expected


@pytest.mark.parametrize(
    ("x", "expected"),
    [([0.1, -0.2, 0.4, 0.9], [0.125, -0.25, 0.5, 1]), ([3, -0.01, 0.5, 1], [4, -0.03125, 0.5, 1])],
)
def test_block_log(x, expected):
    x = torch.tensor(x, dtype=torch.float32)
    assert q.block_log_quantizer(x, 4, 8, block_size=[4]).tolist() == expected
    assert q.block_log_quantizer(x, 4, None, block_size=[4]).tolist() == expected
    assert (q.block_log_quantizer(torch.zeros(4), 4, 8) > 0).all()


def test_blocks_of_a_weight_take_all_its_rows_unless_told():
    x = torch.tensor([[1.0, 0.3], [64.0, 0.3]])
    whole = q.block_fp_quantizer(x, 4, block_size=[16], skip_first_dim=False)
    rows = q.block_fp_quantizer(x, 4, block_size=[1, 16], skip_first_dim=False)
    assert whole.tolist() == [[0, 0], [64, 0]]
    assert rows.tolist() == q.block_fp_quantizer(x, 4).tolist() == [[1, 0.25], [64, 0]]


def test_binary():
    x = torch.tensor(IMAGE)
    assert q.binary_quantizer(x).flatten().tolist() == [0, 0, 0.25, 0.25]
    assert q.binary_quantizer(x, bipolar=True).flatten().tolist() == [-1, 1, 1, 1]
    assert q.binary_quantizer(torch.tensor([[1.0, -3.0], [4.0, 0.0]])).tolist() == [[2, 0], [2, 0]]


def test_scaled_binary():
    scaled = FORMATS["binary"](1, False, True, scaled=True)(torch.tensor(IMAGE))
    assert scaled.flatten().tolist() == [-0.25, 0.25, 0.25, 0.25]


def test_stochastic_binary_follows_the_seed_and_the_probability():
    x = torch.full((10_000,), 0.5)
    torch.manual_seed(1)
    first = q.binary_quantizer(x, stochastic=True, bipolar=True)
    other = q.binary_quantizer(x, stochastic=True, bipolar=True)
    torch.manual_seed(1)
    assert torch.equal(q.binary_quantizer(x, stochastic=True, bipolar=True), first)
    assert not torch.equal(other, first)
    assert (first > 0).float().mean().item() == pytest.approx(0.75, abs=0.02)
    sure = q.binary_quantizer(torch.tensor([-1.0, 1.0] * 500), stochastic=True, bipolar=True)
    assert sure.tolist() == [-1.0, 1.0] * 500
    on = q.binary_quantizer(x, stochastic=True)
    assert set(on.tolist()) == {0.0, 0.5}
    assert (on > 0).float().mean().item() == pytest.approx(0.75, abs=0.02)


def test_residual_signs():
    x = torch.tensor([0.9, 0.5, -0.1, 0.0])
    means = [2 / 3, 1 / 3]
    found = q.residual_sign_quantizer(2, None, means, x)
    expected = [[2 / 3, 2 / 3, -2 / 3, 0], [1 / 3, -1 / 3, 1 / 3, 0]]
    assert torch.allclose(found, torch.tensor(expected), rtol=1e-6)
    assert torch.equal(q.residual_sign_quantizer(1, None, means, x), found[0])
    assert torch.allclose(FORMATS["binary_residual"](32, 0, 1)(x), found.sum(0))
    bipolar = q.residual_sign_quantizer(1, FORMATS["binary"](1, False, True), means, x)
    assert bipolar[3].item() == pytest.approx(2 / 3)


def test_gradients_of_residual_signs_reach_means_and_what_lies_within_one():
    x = torch.tensor([0.9, 3.0], requires_grad=True)
    means = torch.nn.Parameter(torch.tensor([2 / 3, 1 / 3]))
    q.residual_sign_quantizer(1, None, means, x).sum().backward()
    assert x.grad.tolist() == pytest.approx([2 / 3, 0])
    assert means.grad.tolist() == [2, 0]


def test_too_few_means_are_refused():
    with pytest.raises(ValueError, match="3 levels need 3 means"):
        q.residual_sign_quantizer(3, None, [0.5, 0.5], torch.ones(1))


def test_ternary():
    x = torch.tensor(IMAGE)
    assert q.ternary_quantizer(x).flatten().tolist() == [-1, 0, 1, 1]
    scaled = q.ternary_quantizer(x, scaling_factor=True).flatten()
    assert scaled.tolist() == pytest.approx([-1 / 3, 0, 1 / 3, 1 / 3])


@pytest.mark.parametrize(
    "given", [{"threshold": 0.3}, {"mean": 0.4}, {"maximum": 6.0}, {"median": 0.4}]
)
def test_ternary_honours_the_threshold_it_is_given(given):
    x = torch.tensor([[-0.31, 0.29], [0.2, 0.5]])
    assert q.ternary_quantizer(x, **given).tolist() == [[-1, 0], [0, 1]]
    scaled = q.ternary_quantizer(x, **given, scaling_factor=True)
    assert torch.allclose(scaled, torch.tensor([[-0.31, 0], [0, 0.5]]))


def test_ternary_prefers_the_mean_then_the_maximum():
    x = torch.tensor([[0.5, 2.0]])
    assert q.ternary_quantizer(x, mean=1.0, maximum=100.0, median=100.0).tolist() == [[0, 1]]
    assert q.ternary_quantizer(x, maximum=20.0, median=100.0).tolist() == [[0, 1]]


def test_mxint():
    x = torch.tensor([1, -1, 0.5, 0.3])
    assert q.mxint_quantizer(x, 4, 4).tolist() == [0.875, -1, 0.5, 0.25]
    assert q.mxint_quantizer(torch.tensor(MX_BLOCK), 8, 8).tolist() == [
        *(1.96875, 3.9375, 0.96875, -1.9375),
        *(1, 0.5, 0.3125, 0.03125),
    ]
    assert q.mxint_quantizer(torch.zeros(3, 5), 4, 8).eq(0).all()


def test_mxfp():
    x = torch.tensor(MX_BLOCK)
    e4m3 = [2, 3.75, 1, -2, 1, 0.5, 0.3125, 0.01953125]
    assert q.mxfp_quantizer(x, 8, 4, 3).tolist() == e4m3
    assert q.mxfp_quantizer(x, 8, 2, 1).tolist() == [2, 3, 1, -2, 1, 0.5, 0.25, 0]
    columns = q.mxfp_quantizer(torch.stack([x, 2 * x], -1), 8, 4, 3, block_dim=0)
    assert columns[:, 1].tolist() == [2 * value for value in e4m3]


def test_few_samples_are_far_off_in_mxfp():
    x = torch.randn(10_000)
    error = (q.mxfp_quantizer(x, 32, 4, 3) - x).abs() / x.abs()
    assert error[x.abs() > 0.01].max() <= 1 / 16


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: q.mxint_quantizer(x, 8, 8, quantile_search=True), "quantile_search"),
        (lambda x: q.mxfp_quantizer(x, 8, 4, 3, scale_exp_bits=5), "has 8 bits, not 5"),
        (lambda x: q.scale_integer_quantizer(x, 8, quantile=0.9), "quantile"),
    ],
)
def test_options_without_effect_are_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call(torch.ones(8))


def test_rounding_and_clamping_let_gradients_pass():
    x = torch.tensor([0.5, 1.5, -7.2], requires_grad=True)
    (q.my_round(x) + q.my_clamp(x, -1, 1)).sum().backward()
    assert q.my_round(x).tolist() == [0, 2, -7]
    assert q.my_clamp(x, -1, 1).tolist() == [0.5, 1, -1]
    assert x.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("sizes", [[16], [2, 3], [1, 4], [-1]], ids=str)
@pytest.mark.parametrize("shape", [(7,), (5, 6), (3, 4, 5), (2, 3, 4, 5)], ids=str)
def test_blocks_can_be_put_together_again(shape, sizes, skip):
    x = torch.randn(shape)
    rows, largest, padded, block_shape = q.block(x, sizes, skip)
    assert rows.shape == (largest.numel(), math.prod(block_shape))
    assert torch.equal(rows.abs().amax(-1, keepdim=True), largest)
    assert torch.equal(q.unblock(rows, x.shape, padded, block_shape, skip), x)


def test_blocks_of_zeros_have_a_maximum_to_divide_by():
    x = torch.tensor([[0.0, 0.0, 3.0, 1.0, 2.0]])
    assert q.block(x, [1, 2])[1].flatten().tolist() == [2, 3, 2]
    assert q.block(torch.zeros(4), [2])[1].flatten().tolist() == [1, 1]


def test_both_import_paths_offer_the_same():
    for name in chop.nn.quantizers.__all__:
        assert getattr(chop.nn.quantizers, name) is getattr(q, name)


def test_the_map_has_a_function_for_every_format_that_rounds():
    for name, function in q.quantizer_map.items():
        assert callable(function)
        assert "x" in inspect.signature(function).parameters
        assert name in FORMATS or name == "integer_floor"
    # mixed_integer without the bits of a layer is integer
    assert FORMATS.keys() - q.quantizer_map.keys() == {"float", "fp8", "mixed_integer"}
