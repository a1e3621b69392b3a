"""Every number format keeps the promises of NumberFormat."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chop.numerics import FORMATS, from_config, from_dtype, from_precision
from chop.registry import UnknownName

EXAMPLES = {"float": [32], "integer": [8, 4]}
numbers = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=16)
tensors = numbers.map(torch.tensor)


def test_every_format_has_an_example():
    assert EXAMPLES.keys() == set(FORMATS)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if FORMATS[name].elementwise])
class TestElementwiseFormat:
    @given(x=tensors)
    def test_representable_values_are_fixed_points(self, name, x):
        fmt = from_precision(name, EXAMPLES[name])
        assert torch.equal(fmt(fmt(x)), fmt(x))

    @given(x=tensors)
    def test_order_is_kept(self, name, x):
        fmt = from_precision(name, EXAMPLES[name])
        assert (fmt(x.sort().values).diff() >= 0).all()


@pytest.mark.parametrize("name", EXAMPLES)
class TestFormat:
    @given(x=tensors)
    def test_shape_dtype_and_finiteness_are_kept(self, name, x):
        y = from_precision(name, EXAMPLES[name])(x)
        assert (y.shape, y.dtype) == (x.shape, x.dtype)
        assert y.isfinite().all()

    def test_gradient_passes_straight_through(self, name):
        x = torch.randn(8, requires_grad=True)
        from_precision(name, EXAMPLES[name])(x).sum().backward()
        assert torch.equal(x.grad, torch.ones(8))

    def test_precision_and_config_round_trip(self, name):
        fmt = from_precision(name, EXAMPLES[name])
        assert from_precision(fmt.name, fmt.precision) == fmt
        pairs = zip(fmt.precision_keys(), fmt.precision, strict=True)
        config = {"name": name} | {f"weight_{key}": value for key, value in pairs}
        assert from_config(config, "weight") == fmt == from_config(config, "bias")


def test_integer_rounds_to_even_and_saturates():
    fmt = from_precision("integer", [4, 1])
    x = torch.tensor([0.25, 0.75, 0.3, 100.0, -100.0])
    assert fmt(x).tolist() == [0.0, 1.0, 0.5, 3.5, -4.0]


def test_relu_needs_no_sign():
    fmt = from_precision("integer", [8, 4]).for_operand("data_in", non_negative=True)
    assert fmt(torch.tensor([12.0])).item() == 12.0
    assert fmt.precision == [8, 4]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float32, ("float", [32])),
        (torch.float64, ("float", [64])),
        (torch.bfloat16, ("float", [16])),
        (torch.float16, ("float", [16])),
        (torch.float8_e4m3fn, ("float", [8])),
        (torch.complex64, ("float", [64])),
        (torch.int64, ("integer", [64, 0])),
        (torch.uint8, ("integer", [8, 0])),
        (torch.bool, ("integer", [1, 0])),
    ],
)
def test_torchs_own_dtypes_are_formats(dtype, expected):
    fmt = from_dtype(dtype)
    assert (fmt.name, fmt.precision) == expected


def test_a_misspelt_format_is_refused_with_the_nearest_one():
    with pytest.raises(UnknownName, match="'interger'; did you mean 'integer'"):
        from_precision("interger", [8, 4])


def test_a_precision_of_the_wrong_length_says_what_is_needed():
    with pytest.raises(ValueError, match=r"integer needs the precision \[width, frac_width\]"):
        from_precision("integer", [8])


def test_a_missing_config_key_is_named():
    with pytest.raises(ValueError, match="missing \\['weight_frac_width'\\]"):
        from_config({"name": "integer", "weight_width": 8}, "weight")
