"""The smallest networks that once differed from their integers in some way, one per cause."""

import pytest

from .random_networks import Network, Step, differences


def integer(width, frac, weight=(8, 8), **others):
    """Formats of an input and a weight."""
    widths = {"data_in_width": width, "data_in_frac_width": frac}
    widths |= {"weight_width": weight[0], "weight_frac_width": weight[1]}
    return {"name": "integer", **widths, **others}


def affine(width, scale, **others):
    return {"name": "affine", "data_in_width": width, "data_in_scale": scale, **others}


def chain(shape, *steps):
    """A network of layers one after the other: their kinds, options, formats and seeds."""
    made = [Step(kind, (i,), options, *rest) for i, (kind, options, *rest) in enumerate(steps)]
    return Network(shape, tuple(made), (len(made),))


def seeded(format, seed):
    return format, "even", seed


DENSE = {"out_features": 1}
SCALES = affine(4, (0.25, 0.5, 1.0), data_in_axis=1)
FINE = {"bias_width": 2, "bias_frac_width": 8}
COARSE = {"bias_width": 2, "bias_frac_width": 2}
OUT = {"data_out_width": 8, "data_out_frac_width": 6}
FAR = seeded(integer(2, 18, (2, 12), **COARSE), 171618)
PLAIN = {"out_channels": 1, "kernel_size": 1, "bias": False}
WINDOWS = {"out_channels": 4, "kernel_size": (2, 2), "padding": (0, 1)}
BIAS = {"bias_width": 8, "bias_frac_width": 8}
GROUPS = {"out_channels": 4, "kernel_size": 2, "groups": 2, "bias": False}
PADDED = {"out_channels": 1, "kernel_size": 1, "padding": 1}
DILATED = {"kernel_size": 2, "stride": 3, "padding": 0, "dilation": 2, "ceil_mode": True}
ROWS = {"kernel_size": 3, "stride": (2, 3), "padding": 0, "dilation": 1, "ceil_mode": False}
FOUND = {
    "a pool with gaps, as wide as its input": (
        "integer",
        chain(
            (1, 2, 2),
            ("relu", {}, integer(4, 0)),
            ("max_pool", DILATED),
            ("relu", {}, integer(4, 0)),
        ),
    ),
    "all values are ties": (
        "unrolled",
        chain(
            (1,),
            ("linear", {"out_features": 3}, *seeded(integer(2, 3, (2, 2), **FINE), 467663)),
            ("linear", DENSE, integer(2, 6, (2, 5), data_in_signed=False)),
        ),
    ),
    "a batch norm and a scale that is no power of two": (
        "unrolled",
        chain(
            (1,),
            ("relu6", {}, affine(8, 0.015625)),
            ("batch_norm", {}, *seeded(None, 302398)),
            ("relu", {}, affine(8, 0.0027831019833683968)),
        ),
    ),
    "a table after a table without zero": (
        "unrolled",
        chain(
            (1, 2, 1),
            ("conv", PLAIN, *seeded(integer(2, 5), 945099)),
            ("conv", WINDOWS, *seeded(integer(8, 8, **BIAS, **OUT), 267041)),
            ("leaky_relu", {"negative_slope": 0.01}, integer(8, 8)),
            ("silu", {}, integer(8, 6, data_in_signed=False)),
            ("linear", {"out_features": 5}, *seeded(integer(8, 7, (8, 7)), 471481)),
        ),
    ),
    "weights of zeros alone": (
        "unrolled",
        chain(
            (2, 1, 1),
            ("pad", {"pad": (0, 1, 2, 0), "mode": "constant"}),
            ("depthwise", GROUPS, *seeded(integer(2, 18, (1, 1)), 854174)),
        ),
    ),
    "the larger of two sums that have inputs in common": (
        "unrolled",
        chain(
            (6, 3, 7),
            ("linear", {"out_features": 4}, *seeded(integer(8, 8, **BIAS), 711340)),
            ("max_pool", ROWS),
        ),
    ),
    "a bound of 32 bits": (
        "unrolled",
        chain((3,), ("relu6", {}, affine(12, 0.00271790282567963, data_in_zero_point=-2048))),
    ),
    "a window in the padding alone": (
        "unrolled",
        chain((1, 2), ("conv", PADDED, integer(4, 2))),
    ),
    "a padded input that is always far below zero": (
        "integer",
        chain(
            (1, 2),
            ("linear", {"out_features": 2}, *FAR),
            ("conv", PADDED | {"kernel_size": 2}, integer(16, 16, (4, 2))),
        ),
    ),
    "two roundings in a row": (
        "qdq",
        chain(
            (1,),
            ("linear", DENSE, integer(8, 3, data_out_width=8, data_out_frac_width=0)),
            ("linear", DENSE, integer(8, 5)),
        ),
    ),
    "scales per channel after a convolution": (
        "qcdq",
        chain(
            (1, 1, 1),
            ("conv", PLAIN | {"out_channels": 3}, affine(2, 0.015625, weight_width=2)),
            ("relu", {}, SCALES),
        ),
    ),
    "scales per channel of a ReLU": ("simulation", chain((3,), ("relu", {}, SCALES))),
}


@pytest.mark.rtl
@pytest.mark.parametrize("cause", FOUND)
def test_networks_that_once_differed_agree(cause, package):
    for name in ("onnx", "onnxruntime", "alkaid"):
        package(name)
    way, network = FOUND[cause]
    assert not [*map(str, differences(network, ["simulation", way], refusals=True))]


@pytest.mark.parametrize(
    ("first", "shape"),
    [
        (Step("sigmoid", (0,), {}, affine(4, 0.25)), (3,)),  # one table for all channels
        (Step("permute", (0,), {"dims": (0, 2, 1)}), (3, 3)),
    ],
)
def test_scales_per_channel_that_cannot_be_kept_are_refused_in_a_sentence(first, shape):
    network = Network(shape, (first, Step("relu", (1,), {}, SCALES)), (2,))
    (found,) = differences(network, ["simulation"], refusals=True)
    assert found.refusal
    assert found.what.startswith("node ")
    assert "scale" in found.what


def test_joined_values_take_no_scales_per_channel():
    joined = Step("concat", (0, 0), {"dim": 1})
    rounded = Step("softplus", (1,), {}, affine(2, (0.5, 0.25, 0.5, 0.25), data_in_axis=1))
    (found,) = differences(Network((2,), (joined, rounded), (2,)), ["simulation"], refusals=True)
    assert found.refusal
    assert "values that are joined" in found.what
