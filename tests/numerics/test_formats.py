"""Every number format keeps the promises of NumberFormat."""

import copy
import json
import math
import pickle
import re
import sys
import types
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chop.numerics import FORMATS, check_keys, from_config, from_dtype, from_precision
from chop.numerics.affine import Affine
from chop.numerics.binary import Binary, BinaryResidual
from chop.numerics.block_fp import BlockFP
from chop.numerics.block_log import BlockLog
from chop.numerics.float import Float
from chop.numerics.fp8 import FP8
from chop.numerics.integer import Integer
from chop.numerics.log import Log
from chop.numerics.minifloat import MinifloatDenorm, MinifloatIEEE
from chop.numerics.mixed_integer import MixedInteger
from chop.numerics.mx import MXFP, MXInt
from chop.numerics.scale_integer import ScaleInteger
from chop.numerics.ternary import Ternary
from chop.passes.graph.transforms.quantize.variants import LAYER_VARIANTS
from chop.registry import UnknownName

# One line per format; the contract below runs on it.
EXAMPLES = {
    "float": [32],
    "integer": [8, 4],
    "mixed_integer": [8, 4],
    "affine": [8],
    "scale_integer": [8],
    "minifloat_denorm": [8, 4, 7],
    "minifloat_ieee": [8, 4, 7],
    "log": [5, 7],
    "block_fp": [8, 8, 127, [4]],
    "block_minifloat": [8, 4, 8, [4]],
    "block_log": [5, 8, [4]],
    "binary": [1, False, True],
    "binary_residual": [32, False, True],
    "ternary": [2, False, None, None, None],
    "mxint": [8, [4]],
    "mxfp": [4, 3, [4]],
    "fp8": [4, 3],
}
REFINED = [
    *(Integer(8, 4, signed=False), Integer(6, -3, floor=True), Integer(4, 9, ste="clip")),
    *(Integer(5, 3, rounding="up", overflow="symmetric"), Integer(6, 2, overflow="wrap")),
    *(MixedInteger(8, 4, signed=False), MixedInteger(5, 3, rounding="up", overflow="symmetric")),
    *(Affine(4, symmetric=True, scale=0.3), Affine(8, signed=False, scale=0.02, zero_point=100)),
    *(Affine(16, scale=1e-3, ste="clip"), Affine(3, power_of_two=True, scale=0.3, zero_point=-4)),
    *(ScaleInteger(4, symmetric=True), ScaleInteger(4, signed=False)),
    *(Log(4, 3, zero=True), BlockLog(4, 8, [2, 2], zero=True)),
    BlockFP(4, 8, None, [2, -1], batched=True),
    BlockFP(4, 8, None, [2], carry=True),
    *(Binary(1, False, False), Binary(1, False, True, scaled=True)),
    BinaryResidual(32, 0, 1, levels=3),
    *(Ternary(2, True, None, None, None), Ternary(2, True, 0.5, None, None)),
    *(MXInt(8, [4], ocp=True), MXFP(2, 1, [3], block_dim=0, ocp=True)),
    *(FP8(5, 2), FP8(5, 2, saturate=True)),
]

# Laws that do not hold, and why.
NOT_IDEMPOTENT = {
    "mxint": "a maximum rounded down to a power of two gets a finer grid, whose end it exceeds",
    "scale_integer": "the positive maximum saturates, and is the new scale",
    "binary": "on and off: the mean of half the elements is half as large",
    "ternary": "one may lie below a given threshold",
}
NOT_ODD = {
    "affine": "there is one more negative value",
    "integer": "there is one more negative value",
    "mixed_integer": "there is one more negative value",
    "mxint": "there is one more negative value",
    "scale_integer": "there is one more negative value",
    "log": "zero is positive",
    "block_log": "zero is positive",
    "binary": "zero is positive",
}

NAMES = [name for name, cls in FORMATS.items() if cls.name == name]
# what a format needs besides its precision before it can round
GIVEN = {"affine": {"scale": 0.0625}}


def sample(name):
    return replace(from_precision(name, EXAMPLES[name]), **GIVEN.get(name, {}))


CASES = [*(sample(name) for name in NAMES if name in EXAMPLES), *REFINED]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

numbers = st.floats(-100, 100, width=32) | st.floats(width=32, allow_nan=False).filter(
    math.isfinite
)
tensors = st.lists(numbers, min_size=1, max_size=16).map(torch.tensor)
rows = st.lists(numbers, min_size=1, max_size=3).map(torch.tensor)  # a block at most
few = torch.tensor([[-3.3, 0.1, 0.7, 2.0], [0.0, 1e-3, -0.4, 5.5], [9.0, -9.0, 0.02, 1.0]])


def saturates(fmt):
    """All do, but for those that are torch's own."""
    return not isinstance(fmt, Float) and (not isinstance(fmt, FP8) or fmt.saturate)


def same(a, b):
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def test_every_format_has_an_example():
    assert EXAMPLES.keys() == set(NAMES)


@pytest.mark.parametrize("fmt", CASES, ids=repr)
class TestFormat:
    @pytest.mark.sampled(14)
    @given(x=tensors)
    def test_shape_dtype_and_the_input_are_kept_and_the_same_again_gives_the_same(self, fmt, x):
        before = x.clone()
        y = fmt(x)
        assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
        assert torch.equal(x, before)
        assert torch.equal(fmt(before), y)

    @pytest.mark.sampled(14)
    @given(x=tensors)
    def test_finite_numbers_stay_finite_and_nothing_is_beyond_the_ends(self, fmt, x):
        if saturates(fmt):
            y = fmt(x)
            assert y.isfinite().all()
            assert (y <= fmt.range[1]).all()
            assert (y >= fmt.range[0]).all()

    @pytest.mark.sampled(14)
    @given(x=rows)
    def test_order_is_kept(self, fmt, x):
        """Within a block: the least that two of them can hold may differ."""
        if getattr(fmt, "overflow", None) == "wrap":
            return
        size = (getattr(fmt, "block_size", None) or (-1,))[-1]
        y = fmt(x.sort().values[: size if size > 0 else None])
        assert (y[1:] >= y[:-1]).all()

    @pytest.mark.sampled(14)
    @given(x=tensors)
    def test_what_is_rounded_stays(self, fmt, x):
        if fmt.name not in NOT_IDEMPOTENT:
            assert torch.equal(fmt(fmt(x)), fmt(x))

    @pytest.mark.sampled(14)
    @given(x=tensors)
    def test_the_negative_of_a_number_becomes_the_negative(self, fmt, x):
        if fmt.name not in NOT_ODD:
            assert torch.equal(fmt(-x), -fmt(x))

    def test_nan_stays_and_touches_nothing_else(self, fmt):
        x = few.clone()
        x[0, 1] = x[2, 0] = float("nan")
        assert torch.equal(fmt(x).isnan(), x.isnan())
        assert fmt(torch.full((2, 3), float("nan"))).isnan().all()

    def test_infinities_become_the_ends(self, fmt):
        y = fmt(torch.tensor([float("-inf"), 0.5, float("inf")]))
        if saturates(fmt):
            assert y.isfinite().all()
        if saturates(fmt) and math.isfinite(fmt.largest):
            assert [y[0], y[2]] == list(fmt.range)
        if fmt.name == "float" or (fmt.name == "fp8" and fmt.precision[:2] == [5, 2]):
            has_infinities = not getattr(fmt, "saturate", False)
            assert y.isinf().tolist() == [has_infinities, False, has_infinities]

    @pytest.mark.sampled(17)
    def test_all_float_dtypes(self, fmt):
        for dtype in DTYPES:
            x = few.to(dtype)
            assert fmt(x).dtype == dtype
            # what the dtype cannot hold apart, float32 gives the same
            wanted = fmt(x.float()).to(dtype)
            if dtype == torch.float64 and isinstance(
                fmt, Affine | Binary | Ternary | ScaleInteger | BinaryResidual
            ):
                # means, scales and thirds have no end
                assert torch.allclose(fmt(x), wanted, rtol=1e-6)
            else:
                assert torch.equal(fmt(x), wanted)

    @pytest.mark.sampled(11)
    def test_integers_are_refused(self, fmt):
        if not isinstance(fmt, Float):
            with pytest.raises(TypeError, match=f"{fmt.name} rounds floating-point tensors"):
                fmt(torch.arange(3))

    @pytest.mark.sampled(17)
    def test_strides_do_not_matter(self, fmt):
        for x in (few.t(), few[:, ::2], few[None].expand(2, 3, 4)):
            assert torch.equal(fmt(x), fmt(x.contiguous()))

    @pytest.mark.sampled(17)
    def test_empty_tensors(self, fmt):
        for shape in [(0,), (3, 0), (0, 4), (2, 0, 3)]:
            assert fmt(torch.empty(shape)).shape == shape

    @pytest.mark.sampled(17)
    def test_a_single_number(self, fmt):
        x = torch.tensor(0.7, dtype=torch.float64)
        assert fmt(x).shape == ()
        assert fmt(0.7) == fmt(x).item()
        assert isinstance(fmt(0.7), float)
        assert fmt(3) == 3
        assert fmt(None) is None

    def test_gradient_passes_straight_through(self, fmt):
        x = few.clone().requires_grad_()
        weight = torch.randn_like(few)
        y = replace(fmt, ste="identity")(x)
        assert y.requires_grad
        (y * weight).sum().backward()
        assert torch.equal(x.grad, weight)

    def test_clipped_gradient_passes_within_the_range(self, fmt):
        fmt = replace(fmt, ste="clip")
        low, high = fmt.range
        x = torch.tensor([-1e30, low, -0.5, 0.0, 0.5, high, 1e30])
        infinity = torch.tensor(float("inf"))
        x = torch.cat([x, torch.nextafter(x, infinity), torch.nextafter(x, -infinity)])
        x = x[x.isfinite()].requires_grad_()
        fmt(x).sum().backward()
        assert x.grad.tolist() == [float(low <= value <= high) for value in x.tolist()]
        assert torch.equal(fmt(x), replace(fmt, ste="identity")(x))

    @pytest.mark.sampled(17)
    def test_half_precision_has_gradients_too(self, fmt):
        x = few.bfloat16().requires_grad_()
        fmt(x).sum().backward()
        assert x.grad.dtype == torch.bfloat16

    @pytest.mark.sampled(17)
    def test_values_are_the_same_under_vmap(self, fmt):
        x = torch.randn(5, 3, 4)
        assert torch.equal(torch.func.vmap(fmt)(x), torch.stack([fmt(part) for part in x]))

    @pytest.mark.sampled(8)
    def test_gradients_of_torch_func_pass(self, fmt):
        fmt = replace(fmt, ste="identity")
        slope = torch.func.grad(lambda x: fmt(x).sum())
        assert torch.equal(slope(few), torch.ones_like(few))
        assert torch.equal(torch.func.vmap(slope)(few[None]), torch.ones(1, *few.shape))

    @pytest.mark.sampled(1)
    def test_values_are_the_same_compiled_as_one_graph(self, fmt):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: fmt(x), fullgraph=True, backend="eager")
        x = torch.randn(6, 5)
        assert torch.equal(compiled(x), fmt(x))

    def test_precision_and_config_round_trip(self, fmt):
        plain = from_precision(fmt.name, fmt.precision)
        assert plain.precision == fmt.precision
        assert from_precision(fmt.name, json.loads(json.dumps(fmt.precision))) == plain
        config = {"name": fmt.name}
        pairs = zip(fmt.precision_keys(), fmt.precision, strict=True)
        config |= {f"weight_{key}": value for key, value in pairs}
        assert from_config(config, "weight") == plain == from_config(config, "bias")
        refined = {key: getattr(fmt, key) for key in fmt.refinement_keys()}
        assert from_config(config | refined, "weight") == fmt
        own = {f"weight_{key}": value for key, value in refined.items()}
        assert from_config(config | own, "weight") == fmt
        check_keys(config | refined | own, ["weight"], [])

    @pytest.mark.sampled(17)
    def test_it_is_a_value(self, fmt):
        assert pickle.loads(pickle.dumps(fmt)) == fmt == copy.deepcopy(fmt)
        assert hash(replace(fmt)) == hash(fmt)
        with pytest.raises(FrozenInstanceError):
            fmt.ste = "clip"

    def test_it_knows_its_size(self, fmt):
        assert 1 <= fmt.bits <= 128
        assert 0 <= fmt.smallest <= fmt.largest
        if fmt.elementwise and fmt.name != "affine":  # its scale is the next test's
            assert fmt.average_bits([3, 4]) == fmt.bits

    def test_a_scale_of_its_own_is_counted(self, fmt):
        scales = {"scale_integer": 3, "ternary": 3 * bool(getattr(fmt, "scaling_factor", 0))}
        if fmt.name == "binary":
            scales["binary"] = 0 if fmt.bipolar and not fmt.scaled else 3
        if fmt.name == "affine":  # one scale per tensor, and perhaps a zero point
            bits = (8 if fmt.power_of_two else 32) + (fmt.width if fmt.zero_point else 0)
            assert fmt.average_bits([3, 4]) == pytest.approx(fmt.bits + bits / 12)
        if fmt.name in scales:
            assert fmt.average_bits([3, 4]) == fmt.bits + 32 * scales[fmt.name] / 12

    @given(x=tensors)
    def test_codes_of_its_grid_are_its_values(self, fmt, x):
        if (grid := fmt.grid()) is None:
            return
        for y in (fmt(x), fmt(x.double())):
            codes = grid.encode(y)
            assert grid.low <= int(codes.min()) <= int(codes.max()) <= grid.high
            assert torch.equal(grid.decode(codes, y.dtype), y)
        low, high = fmt.range
        assert grid.range == pytest.approx((low, high))
        assert grid.width == fmt.bits

    def test_only_a_fixed_grid_can_be_listed(self, fmt):
        if fmt.elementwise and not isinstance(fmt, Float):
            assert fmt.values().dtype == torch.float64
        else:
            with pytest.raises(NotImplementedError, match=f"{fmt.name} has no fixed grid"):
                fmt.values()

    @pytest.mark.sampled(11)
    def test_a_misspelt_gradient_is_refused(self, fmt):
        with pytest.raises(ValueError, match=f"{fmt.name}: ste must be 'identity' or 'clip'"):
            replace(fmt, ste="clipped")


@pytest.mark.parametrize(
    ("fmt", "x"),
    [
        (MXInt(8, [4]), [64.2]),  # 64.2 -> 64.0 -> 63.5
        (ScaleInteger(4), [1.0, 0.5]),
        (Binary(1, False, False), [1.0, -1.0]),
        (Ternary(2, False, 4.0, None, None), [5.0]),
    ],
    ids=repr,
)
def test_formats_said_not_to_be_idempotent_are_not(fmt, x):
    x = torch.tensor(x)
    assert fmt.name in NOT_IDEMPOTENT
    assert not torch.equal(fmt(fmt(x)), fmt(x))


@pytest.mark.parametrize(
    ("fmt", "x"),
    [
        (Affine(4, scale=1.0), 10.0),
        (Integer(4, 0), 10.0),
        (MXInt(4, [1]), 1.0),
        (ScaleInteger(4), 1.0),
        (Log(4, 3), 0.0),
        (BlockLog(4, 8, [1]), 0.0),
        (Binary(1, False, True), 0.0),
    ],
    ids=repr,
)
def test_formats_said_not_to_be_odd_are_not(fmt, x):
    assert fmt.name in NOT_ODD
    assert fmt(-x) != -fmt(x)


@given(x=tensors)
def test_where_the_exceptions_end(x):
    """Refinements and settings with which the laws hold."""
    for fmt in (MXInt(8, [4], ocp=True), Binary(1, False, True), Ternary(2, 0, None, None, None)):
        assert torch.equal(fmt(fmt(x)), fmt(x))
    for fmt in (MXInt(8, [4], ocp=True), ScaleInteger(8, symmetric=True), Log(5, 7, zero=True)):
        assert torch.equal(fmt(-x), -fmt(x))


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_residual_signs_are_sums_of_signs_or_zero(levels):
    fmt = BinaryResidual(32, 0, 1, levels=levels)
    grid = fmt.values()
    assert (fmt(grid.float()) - grid).abs().max() < 1e-6
    y = fmt(torch.randn(1000))
    assert (y[:, None] - grid.float()).abs().amin(1).max() < 1e-6
    assert fmt.smallest == grid[grid > 0][0]
    assert (fmt.largest, fmt.bits) == (1.0, levels)
    assert fmt(torch.zeros(1)) == 0


@pytest.mark.parametrize("bipolar", [True, False])
def test_stochastic_binary_draws_from_torchs_generator(bipolar):
    fmt = Binary(1, True, bipolar)
    x = torch.linspace(-1.5, 1.5, 1000)
    torch.manual_seed(3)
    first = fmt(x)
    torch.manual_seed(3)
    assert torch.equal(fmt(x), first)
    assert not torch.equal(fmt(x), first)
    assert (first[x >= 1] > 0).all()
    assert (first[x <= -1] <= 0).all()
    draw = torch.func.vmap(fmt, randomness="different")
    assert draw(torch.zeros(4, 50)).shape == (4, 50)


def test_relu_needs_no_sign():
    fmt = from_precision("integer", [8, 4]).for_operand("data_in", non_negative=True)
    assert fmt(torch.tensor([12.0])).item() == 12.0
    assert fmt.precision == [8, 4]


@pytest.mark.parametrize(
    ("alias", "name"), [("fixed", "integer"), ("minifloat_simple", "minifloat_ieee")]
)
def test_older_names_are_understood(alias, name):
    assert FORMATS[alias] is FORMATS[name]
    assert from_precision(alias, EXAMPLES[name]).name == name


@pytest.mark.parametrize(
    ("given_as", "means"),
    [
        (Integer(8, None), Integer(8, 4)),
        (MinifloatIEEE(8, 4, None), MinifloatIEEE(8, 4, 7)),
        (MinifloatDenorm(8, 5, None), MinifloatDenorm(8, 5, 15)),
        (Log(4, None), Log(4, 3)),
        (BlockFP(8, 8, None, 16), BlockFP(8, 8, 127, [16])),
        (BlockLog(4, None, [16]), BlockLog(4, 8, [16])),
    ],
    ids=repr,
)
def test_none_is_filled_in(given_as, means):
    assert given_as == means
    assert given_as.precision == means.precision
    assert None not in given_as.precision


WRONG = {
    "float": [[0], [None], ["32"]],
    "integer": [[0, 0], [65, 0], [8.0, 4], [None, 4], [8, 4.5], [8, 1000], [True, 0], ["8", 4]],
    "mixed_integer": [[0, 0], [1, 0], [65, 0], [8.0, 4], [None, 4], [8, 4.5], [8, 1000]],
    "affine": [[1], [17], [None], [8.0], [32.0], ["8"], [True]],
    "scale_integer": [[1], [None], [8.0]],
    "minifloat_denorm": [[8, 7, 7], [8, 9, 7], [0, 1, 1], [8, 0, 1], [8, 4, 1000], [8, None, 7]],
    "minifloat_ieee": [[8, 8, 7], [1, 1, 1], [8, 4.0, 7], [8, 4, "7"], [8, 4, -127]],
    "log": [[1, 0], [10, 0], [None, 3], [5, 500]],
    "block_fp": [
        *([8, 8, 127, block_size] for block_size in ([0], [], None, [-2], [4.0], 0, True)),
        *([1, 8, 127, [4]], [8, 9, 127, [4]]),
    ],
    "block_minifloat": [[8, 8, 4, [4]], [8, 4, 0, [4]], [8, 4, None, [4]]],
    "block_log": [[1, 8, [4]], [4, 9, [4]]],
    "binary": [[0, False, True], [1, None, True], [1, False, 2], [1, "NA", 1]],
    "binary_residual": [[0, 0, 1], [1, None, 1]],
    "ternary": [[1, 0, None, None, None], [2, 2, None, None, None], [2, 0, "NA", None, None]],
    "mxint": [[1, [4]], [25, [4]], [8, [0]], [8, None]],
    "mxfp": [[0, 3, [4]], [9, 3, [4]], [4, 23, [4]], [4, -1, [4]], [4, 3, "4"]],
    "fp8": [[4, 4], [3, 4], [None, None]],
}


@pytest.mark.parametrize(
    ("name", "precision"), [(name, wrong) for name in WRONG for wrong in WRONG[name]], ids=str
)
def test_parameters_out_of_range_are_refused_in_one_sentence(name, precision):
    with pytest.raises(ValueError, match=rf"^{name}: \w+ .* \(got [^\n]*\)$"):
        from_precision(name, precision)


def test_every_format_refuses_something():
    assert WRONG.keys() == set(NAMES)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Integer(8, 4, signed=None), "integer: signed must be true or false"),
        (lambda: Integer(8, 4, floor="no"), "integer: floor must be true or false"),
        (lambda: BinaryResidual(8, 0, 1, levels=0), "levels must be an integer from 1 to 3"),
        (lambda: MXInt(8, [4], block_dim=1.0), "mxint: block_dim must be an integer"),
        (lambda: MXFP(4, 3, [4], ocp=2), "mxfp: ocp must be true or false"),
        (lambda: BlockFP(8, 8, 127, [4], carry="yes"), "block_fp: carry must be true or false"),
        (lambda: BlockFP(8, 8, 127, [4], batched="yes"), "block_fp: batched must be true or false"),
        (
            lambda: Ternary(2, 0, None, None, None, threshold=-1),
            "ternary: threshold must be a number",
        ),
    ],
)
def test_refinements_out_of_range_are_refused(build, text):
    with pytest.raises(ValueError, match=text):
        build()


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float32, ("float", [32])), (torch.float64, ("float", [64])),
        (torch.bfloat16, ("float", [16])), (torch.float16, ("float", [16])),
        (torch.float8_e4m3fn, ("float", [8])), (torch.complex64, ("float", [64])),
        (torch.int64, ("integer", [64, 0])), (torch.uint8, ("integer", [8, 0])),
        (torch.bool, ("integer", [1, 0])),
    ],
)  # fmt: skip
def test_torchs_own_dtypes_are_formats(dtype, expected):
    fmt = from_dtype(dtype)
    assert (fmt.name, fmt.precision) == expected


def test_a_float_leaves_everything_as_it_is():
    x = torch.tensor([float("nan"), float("inf"), 0.1, 1e-45])
    assert Float(32)(x) is x
    assert Float(32)(0.1) == 0.1
    assert Float(32).smallest == 2.0**-149


@pytest.mark.parametrize("precision", [[8], [8, 4, 2], 8, None, "84"])
def test_a_precision_of_the_wrong_length_says_what_is_needed(precision):
    with pytest.raises(ValueError, match=r"integer needs the precision \[width, frac_width\]"):
        from_precision("integer", precision)


def test_a_missing_config_key_is_named():
    with pytest.raises(ValueError, match="missing \\['weight_frac_width'\\]"):
        from_config({"name": "integer", "weight_width": 8}, "weight")


def test_a_bias_with_some_keys_of_its_own_needs_all_of_them():
    config = {"name": "integer", "weight_width": 8, "weight_frac_width": 4, "bias_width": 8}
    with pytest.raises(ValueError, match="missing \\['bias_frac_width'\\]"):
        from_config(config, "bias")


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("weight_widht", "weight_width"),
        ("weight_frac_witdh", "weight_frac_width"),
        ("wieght_width", "weight_width"),
        ("weight_block_size", None),
        ("data_in_width", None),
        ("flor", "floor"),
    ],
)
def test_a_key_that_the_format_does_not_have_is_refused(key, near):
    config = {"name": "integer", "weight_width": 8, "weight_frac_width": 4, key: 1}
    with pytest.raises(UnknownName, match=f"unknown key of an integer config '{key}'") as error:
        check_keys(config, ["weight"], [])
    assert near is None or f"did you mean {near!r}" in str(error.value)


def test_extra_keys_are_those_that_the_caller_allows():
    config = {"name": "binary", "weight_width": 1, "binary_training": True, "bypass": False}
    check_keys(config, ["weight"], ["binary_training"])
    with pytest.raises(UnknownName, match="binary_training"):
        check_keys(config, ["weight"], [])


PAGE = Path(__file__).parents[2] / "docs" / "add_a_format.md"


@pytest.fixture
def posit(monkeypatch):
    """The format of the page, in a module of its own, and in the registry for one test."""
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    page = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)
    for registry in (FORMATS, LAYER_VARIANTS):
        monkeypatch.setattr(registry, "_items", dict(registry._load()))
    exec("\n".join(code), vars(page))
    return FORMATS["posit8"](1)


LAWS = [name for name in vars(TestFormat) if name.startswith("test_")]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("law", LAWS)
def test_the_format_of_the_page_keeps_the_contract(law, posit):
    getattr(TestFormat(), law)(posit)


def test_the_format_of_the_page_finds_the_nearest_of_its_values(posit):
    for fmt in (posit, FORMATS["posit8"](2), FORMATS["posit8"](0)):
        grid = fmt.values()
        assert len(grid) == 255
        assert torch.equal(fmt(grid.float()).double(), grid)
        x = torch.randn(5000).mul(4).exp() * torch.randn(5000).sign()
        distance = (x.double()[:, None] - grid).abs().amin(1)
        assert torch.equal((fmt(x).double() - x).abs(), distance)


@pytest.mark.parametrize(("stochastic", "bipolar"), [(True, True), (False, False)])
def test_residual_signs_refuse_what_they_would_not_do(stochastic, bipolar):
    with pytest.raises(ValueError, match="give stochastic = 0 and bipolar = 1"):
        BinaryResidual(1, stochastic, bipolar)
