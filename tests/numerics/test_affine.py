"""The static affine format: its definition, its scales per channel, and LSQ's gradient."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chop.numerics import from_config
from chop.numerics.affine import Affine
from chop.numerics.affine_rounding import ScaledAffine

scales = st.floats(2.0**-40, 2.0**40, width=32)


def numbers(count=2000, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, generator=draw) * 2.0 ** torch.randint(-12, 12, (count,), generator=draw)
    return torch.cat([x, torch.arange(-300, 300) / 4])


def onnx(x, scale, zero_point, low, high):
    """QuantizeLinear, then DequantizeLinear, as the ONNX standard defines them, in float32."""
    steps = np.rint(x / np.float32(scale)) + np.float32(zero_point)
    codes = np.clip(steps, low, high).astype(np.int64)
    return (codes - zero_point).astype(np.float32) * np.float32(scale)


@given(data=st.data())
def test_it_is_onnx_quantize_linear(data):
    width, signed = data.draw(st.integers(2, 16)), data.draw(st.booleans())
    low, high = Affine(width, signed=signed).codes
    point, scale = data.draw(st.integers(low, high)), data.draw(scales)
    fmt = Affine(width, signed=signed, scale=scale, zero_point=point)
    x = numbers() * scale
    wanted = onnx(x.numpy(), scale, point, low, high)
    assert np.array_equal(fmt(x).numpy(), wanted)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_channels_are_rounded_like_tensors_alone(axis):
    x = torch.randn(4, 4, 4)
    scale, point = [0.5, 0.25, 2.0, 2.0**-6], [0, 3, -4, 1]
    fmt = Affine(5, axis=axis, scale=scale, zero_point=point)
    for channel in range(4):
        alone = Affine(5, scale=scale[channel], zero_point=point[channel])
        part = x.select(axis, channel)
        assert torch.equal(fmt(x).select(axis, channel), alone(part))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_channels_in_every_dtype_and_under_vmap(dtype):
    fmt = Affine(6, axis=1, scale=[0.1, 0.2, 0.3], zero_point=[0, 1, 2])
    x = torch.randn(4, 3, 5).to(dtype)
    y = fmt(x)
    assert y.dtype == dtype
    assert torch.allclose(y.double(), fmt(x.float()).double(), rtol=1e-2)
    by_sample = Affine(6, axis=0, scale=[0.1, 0.2, 0.3], zero_point=[0, 1, 2])
    assert torch.equal(torch.func.vmap(by_sample)(x), y)


def test_the_definition_by_hand():
    fmt = Affine(4, signed=False, scale=0.5, zero_point=3)
    x = torch.tensor([0.0, 0.25, 0.75, -0.25, -1.5, -9.0, 6.0, 6.25, 99.0])
    assert fmt(x).tolist() == [0.0, 0.0, 1.0, 0.0, -1.5, -1.5, 6.0, 6.0, 6.0]
    assert fmt.codes == (0, 15)
    assert fmt.range == (-1.5, 6.0)
    assert fmt.values().tolist() == [(code - 3) * 0.5 for code in range(16)]
    assert Affine(4, symmetric=True).codes == (-7, 7)
    assert Affine(4).codes == (-8, 7)


def test_powers_of_two_are_the_next_ones():
    for scale, used in [(0.3, 0.5), (0.5, 0.5), (0.50001, 1.0), (3.0, 4.0)]:
        assert Affine(8, power_of_two=True, scale=scale).scale == used
    several = Affine(8, axis=0, power_of_two=True, scale=[0.3, 1.0])
    assert several.scale == (0.5, 1.0)


def test_a_relu_gives_the_sign_to_the_range_unless_there_is_a_zero_point():
    assert Affine(8, scale=1.0).for_operand("data_in", non_negative=True).codes == (0, 255)
    fmt = Affine(8, scale=1.0, zero_point=-128)
    assert fmt.for_operand("data_in", non_negative=True) == fmt


def test_bits_count_scales_and_zero_points():
    shape = [4, 3, 2]
    assert Affine(8).average_bits(shape) == 8 + 32 / 24
    assert Affine(8, axis=0).average_bits(shape) == 8 + 4 * 32 / 24
    assert Affine(8, axis=-2, power_of_two=True).average_bits(shape) == 8 + 3 * 8 / 24
    assert Affine(8, axis=0, zero_point="calibrated").average_bits(shape) == 8 + 4 * 40 / 24
    assert Affine(32).average_bits(shape) == 32


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"scale": 0.0}, "scale must be a positive, finite number"),
        ({"scale": -0.1}, "scale must be a positive, finite number"),
        ({"scale": math.nan}, "scale must be a positive, finite number"),
        ({"scale": math.inf}, "scale must be a positive, finite number"),
        ({"scale": "half"}, "scale must be a positive, finite number"),
        ({"scale": True}, "scale must be a positive, finite number"),
        ({"scale": 1e-60}, r"scale must lie between 2\*\*-126 and"),
        ({"scale": 1e38}, r"scale must lie between 2\*\*-126 and"),
        ({"scale": [0.1, 0.2]}, "scale must be one number without axis"),
        ({"scale": 0.1, "axis": 0}, "scale must be a list of numbers along axis"),
        ({"scale": [], "axis": 0}, "scale must have a number for each channel"),
        ({"scale": [0.1, 0.0], "axis": 0}, "scale must be a positive, finite number"),
        ({"zero_point": 128}, "zero_point must be an integer among the codes.*-128 to 127"),
        ({"zero_point": -1, "signed": False}, "zero_point must be an integer among the codes"),
        ({"zero_point": 200, "scale": 0.1}, r"got width = \d, scale = 0\.1, zero_point = 200"),
        ({"zero_point": 0.5}, "zero_point must be an integer among the codes"),
        ({"zero_point": 1, "symmetric": True}, "zero_point must be 0 with symmetric"),
        ({"zero_point": "calibrated", "symmetric": True}, "symmetric needs a zero_point of 0"),
        (
            {"zero_point": [1, 2, 3], "scale": [0.1, 0.2], "axis": 0},
            "zero_point must have one number for each scale",
        ),
        ({"axis": "channels"}, "axis must be the number of a dimension"),
        ({"axis": True}, "axis must be the number of a dimension"),
        ({"learn": 2}, "learn must be true or false"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(options, text):
    with pytest.raises(ValueError, match=text) as error:
        Affine(8, **options)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_an_error_names_the_keys_of_the_config():
    config = {"name": "affine", "weight_width": 8, "weight_scale": -1.0}
    with pytest.raises(ValueError, match=r"^affine: weight_scale must be a positive"):
        from_config(config, "weight")


def test_without_a_scale_it_refuses_to_round():
    fmt = Affine(8)
    for attempt in (lambda: fmt(torch.ones(3)), lambda: fmt(0.5)):
        with pytest.raises(ValueError, match="has no scale yet; run calibrate, or give scale"):
            attempt()
    assert (fmt.range, fmt.smallest) == ((-math.inf, math.inf), 0.0)
    with pytest.raises(NotImplementedError, match="affine has no fixed grid"):
        fmt.values()


@pytest.mark.parametrize(
    ("fmt", "text"),
    [
        (Affine(8, axis=2, scale=[0.1, 0.2]), "axis is 2, but the tensor has 2 dimensions"),
        (Affine(8, axis=0, scale=[0.1, 0.2]), "there are 2 scales for 3 channels along axis 0"),
    ],
)
def test_a_tensor_without_these_channels_is_refused(fmt, text):
    with pytest.raises(ValueError, match=text):
        fmt(torch.ones(3, 2))


def lsq(x, scale, low, high, slope, count, axis=None):
    """The gradients of LSQ as in the paper, element by element, in Python."""
    for_x, for_scale = torch.zeros_like(x), torch.zeros_like(scale)
    for place in np.ndindex(*x.shape):
        channel = () if axis is None else place[axis]
        v = (x[place] / scale[channel]).item()
        if v <= low:
            step = low
        elif v >= high:
            step = high
        else:
            step = round(v) - v
            for_x[place] = slope[place]
        for_scale[channel] += slope[place] * step / math.sqrt(count * high)
    return for_x, for_scale


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_a_scale_is_trained_by_the_gradient_of_lsq(axis):
    torch.manual_seed(0)
    x = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor(0.2 if axis is None else [0.1, 0.2, 0.3], requires_grad=True)
    fmt = Affine(4, axis=axis, learn=True)
    y = ScaledAffine(fmt, scale, torch.zeros_like(scale, dtype=torch.int32))(x)
    slope = torch.randn_like(x)
    y.backward(slope)
    count = 9 if axis is None else 3
    for_x, for_scale = lsq(x.detach(), scale.detach().double(), -8, 7, slope, count, axis)
    assert torch.equal(x.grad, for_x)
    assert torch.allclose(scale.grad, for_scale.float(), rtol=1e-5)


def test_the_elements_of_a_sample_count_in_a_batch_of_activations():
    fmt, point = Affine(4, learn=True), torch.tensor(0, dtype=torch.int32)
    x = torch.full((6, 5), 0.33)
    grads = {}
    for batched in (False, True):
        scale = torch.tensor(0.2, requires_grad=True)
        ScaledAffine(fmt, scale, point, batched=batched)(x).sum().backward()
        grads[batched] = scale.grad.item()
    assert grads[True] == pytest.approx(grads[False] * math.sqrt(6))


@pytest.mark.parametrize("raw", [-0.25, 0.25, 0.0])
def test_a_trained_scale_is_used_by_its_magnitude(raw):
    scale = torch.tensor(raw, requires_grad=True)
    point = torch.tensor(0, dtype=torch.int32)
    y = ScaledAffine(Affine(4, learn=True), scale, point)(torch.tensor([0.3, 100.0]))
    used = max(abs(raw), 2.0**-126)
    assert y.tolist() == [min(round(0.3 / used), 7) * used, 7 * used]
    y.sum().backward()
    assert scale.grad.isfinite()
    assert scale.grad != 0


def test_a_trained_power_of_two_stays_one_and_gets_the_gradient_of_its_scale():
    scale = torch.tensor(0.3, requires_grad=True)
    fmt = Affine(4, learn=True, power_of_two=True)
    x = torch.tensor([0.7, 9.0])
    y = ScaledAffine(fmt, scale, torch.tensor(0, dtype=torch.int32))(x)
    assert y.tolist() == [0.5, 3.5]
    y.sum().backward()
    assert scale.grad.item() == pytest.approx((1 - 1.4 + 7) / math.sqrt(2 * 7), rel=1e-5)


@pytest.mark.parametrize("axis", [None, 0])
def test_clipped_gradients_end_where_the_codes_do(axis):
    scale = 0.5 if axis is None else [0.5, 1.0]
    fmt = Affine(3, axis=axis, scale=scale, ste="clip")
    x = torch.tensor([[-2.1, -2.0, 1.5, 1.6], [-4.1, -4.0, 3.0, 3.1]], requires_grad=True)
    fmt(x).sum().backward()
    per_channel = [[0, 1, 1, 0], [0, 1, 1, 0]]
    assert x.grad.tolist() == (per_channel if axis == 0 else [[0, 1, 1, 0], [0, 0, 0, 0]])


@pytest.mark.parametrize("operand", ["data_in", "weight", "data_out"])
def test_32_bits_are_for_biases(operand):
    config = {"name": "affine", f"{operand}_width": 32}
    text = f"affine: {operand}_width must be an integer from 2 to 16; 32 is for biases only"
    with pytest.raises(ValueError, match=text):
        from_config(config, operand)
    assert from_config({"name": "affine", "bias_width": 32}, "bias").width == 32


def test_a_scale_that_float32_cannot_hold_is_named_once():
    config = {"name": "affine", "data_in_width": 8, "data_in_scale": 1e-60}
    with pytest.raises(ValueError, match="; multiply the data by a constant ") as error:
        from_config(config, "data_in")
    assert str(error.value).count("data_in_scale") == 2  # the rule, and what was given


def test_an_axis_for_a_single_number_is_refused():
    fmt = Affine(8, axis=1, scale=[0.1, 0.2])
    with pytest.raises(ValueError, match="axis is 1, but a single number has none; leave it out"):
        fmt(torch.tensor(1.0))
