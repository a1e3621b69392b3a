"""onnxruntime's optimiser has faults, and our files avoid them.

The first test shows each fault in a small model: if it fails, onnxruntime has cured one, and its
workaround in chop/onnx/workarounds.py can go.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

import onnx

from chop.ir import MaseGraph
from chop.onnx.builder import ModelBuilder
from chop.onnx.runtime import Runtime
from chop.onnx.workarounds import work_around_faults
from chop.passes import Pipeline
from chop.passes.graph.interface.export_onnx import onnx_model

X = -torch.arange(1.0, 33.0).reshape(1, 2, 4, 4)


def padded_pool(pool, size, passed=()):
    """Zeros around an image, what only carries values, and a pool."""
    builder = ModelBuilder("pads")
    x = builder.input("x", np.float32, [1, 2, 4, 4])
    pads = builder.constant(np.array([0, 0, size, size] * 2))
    x = builder.add("Pad", x, pads)
    for op in passed:
        scale = () if op == "Identity" else (np.float32(1), np.uint8(128))
        x = builder.add(op, x, *map(builder.constant, scale))
    y = builder.add(pool, x, kernel_shape=[2, 2])
    edge = 3 + 2 * size
    builder.output(y, "y", np.float32, [1, 2, edge, edge])
    return builder


def as_written(builder, monkeypatch):
    """Return a model without workarounds."""
    with monkeypatch.context() as patch:
        patch.setattr("chop.onnx.builder.work_around_faults", lambda builder: None)
        return builder.model()


def result(model, *, optimize):
    return Runtime(model, optimize=optimize).run({"x": X.numpy()})["y"]


CARRIED = [(), ("Identity",), ("QuantizeLinear", "DequantizeLinear")]


@pytest.mark.parametrize("passed", CARRIED[:2])
def test_the_optimiser_still_takes_zeros_before_max_pooling_for_nothing(passed, monkeypatch):
    model = as_written(padded_pool("MaxPool", 1, passed), monkeypatch)
    assert result(model, optimize=False)[0, 0, 0, 0] == 0
    assert result(model, optimize=True)[0, 0, 0, 0] == -1


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_the_optimiser_still_makes_pools_that_do_not_load(pool, monkeypatch):
    model = as_written(padded_pool(pool, 2), monkeypatch)
    assert result(model, optimize=False).shape == (1, 2, 7, 7)
    with pytest.raises(ValueError, match=r"onnxruntime cannot run the model: .*pool_attributes"):
        Runtime(model)


@pytest.mark.parametrize("passed", CARRIED)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_files_are_pooled_as_they_are_written(pool, size, passed):
    model = padded_pool(pool, size, passed).model()
    onnx.checker.check_model(model, full_check=True)
    assert np.array_equal(result(model, optimize=True), result(model, optimize=False))


def test_only_pads_before_pools_are_changed(monkeypatch):
    builder = ModelBuilder("conv")
    pads = builder.constant(np.array([0, 0, 1, 1] * 2))
    x = builder.add("Pad", builder.input("x", np.float32, [1, 2, 4, 4]), pads)
    weight = builder.constant(np.ones((1, 2, 3, 3), np.float32))
    builder.output(builder.add("Conv", x, weight), "y", np.float32, [1, 1, 4, 4])
    before = [*builder.nodes[0].input]
    work_around_faults(builder)
    assert [*builder.nodes[0].input] == before


NETWORKS = {
    "layer": nn.Sequential(nn.ZeroPad2d(1), nn.MaxPool2d(2)),
    "constant": nn.Sequential(nn.ConstantPad2d((1, 0, 2, 1), 0.0), nn.MaxPool2d(3, 2)),
    "two pads": nn.Sequential(nn.ZeroPad2d(1), nn.ZeroPad2d((0, 0, 2, 2)), nn.MaxPool2d(2)),
    "wide": nn.Sequential(nn.ZeroPad2d(3), nn.MaxPool2d(2, ceil_mode=True)),
    "average": nn.Sequential(nn.ZeroPad2d(3), nn.AvgPool2d(2, count_include_pad=False)),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_that_pad_and_pool_run_as_in_torch(name):
    model = NETWORKS[name].eval()
    common = ("add_common_metadata", {"dummy_in": {"input": X}})
    graph, _ = Pipeline(["init_metadata", common])(MaseGraph(model))
    (found,) = Runtime(onnx_model(graph)).run({"input": X.numpy()}).values()
    assert torch.equal(torch.from_numpy(found), model(X))


@pytest.mark.parametrize("kind", ["qdq", "qcdq", "integer"])
def test_quantised_networks_that_pad_and_pool_run_as_in_torch(kind):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.out = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 1, 1)

        def forward(self, x):
            return self.out(F.max_pool2d(F.pad(self.conv(x), (2, 2, 2, 2)), 2))

    torch.manual_seed(0)
    widths = {
        "data_in_width": 8,
        "data_in_frac_width": 2,
        "weight_width": 6,
        "weight_frac_width": 4,
    }
    config = {"name": "integer", **widths, "bias_width": 8, "bias_frac_width": 6}
    steps = [
        "init_metadata",
        ("add_common_metadata", {"dummy_in": {"x": X}}),
        ("quantize", {"by": "type", "conv2d": {"config": config}}),
    ]
    graph, _ = Pipeline(steps)(MaseGraph(Network().eval()))
    found = Runtime(onnx_model(graph, kind)).run({"x": X.numpy()})["output"]
    assert torch.equal(torch.from_numpy(found), graph.model(X))


FLOAT = np.float32
PASSED = {
    "nothing": lambda b, x: x,
    "identity": lambda b, x: b.add("Identity", x),
    "cast": lambda b, x: b.add("Cast", x, to=1),
    "dropout": lambda b, x: b.add("Dropout", x),
    "expand": lambda b, x: b.add("Expand", x, b.constant(np.array([1, 2, 4, 4]))),
    "+ 0": lambda b, x: b.add("Add", x, b.constant(FLOAT(0))),
    "0 +": lambda b, x: b.add("Add", b.constant(FLOAT(0)), x),
    "- 0": lambda b, x: b.add("Sub", x, b.constant(np.zeros(1, FLOAT))),
    "* 1": lambda b, x: b.add("Mul", x, b.constant(FLOAT(1))),
    "/ 1": lambda b, x: b.add("Div", x, b.constant(FLOAT(1))),
    "* 1 / 1": lambda b, x: PASSED["/ 1"](b, PASSED["* 1"](b, x)),
    "* (0 + 1)": lambda b, x: b.add("Mul", x, PASSED["0 +"](b, b.constant(FLOAT(1)))),
}
SIGNED, UNSIGNED = np.int8(0), np.uint8(0)


def rounded_twice(between=PASSED["nothing"], first=(0.125, SIGNED), second=(0.03125, SIGNED)):
    """Two roundings, and what lies between them; scale and zero point may be names of values."""
    builder = ModelBuilder("roundings")
    x = builder.input("x", np.float32, [1, 2, 4, 4])
    for scale, zero in (first, second):
        scale = scale(builder) if callable(scale) else builder.constant(FLOAT(scale))
        grid = scale, builder.constant(zero)
        x = builder.add("DequantizeLinear", builder.add("QuantizeLinear", x, *grid), *grid)
        x = between(builder, x)
    builder.output(x, "y", np.float32, [1, 2, 4, 4])
    return builder


def is_kept(model, near=0.0):
    """Whether the optimiser leaves numbers as the file has them."""
    with_thirds = {"x": X.numpy() / 3}
    found = [Runtime(model, optimize=optimize).run(with_thirds)["y"] for optimize in (False, True)]
    return np.allclose(*found, rtol=0, atol=near)


@pytest.mark.parametrize("name", PASSED)
def test_the_optimiser_still_makes_one_rounding_of_two(name, monkeypatch):
    assert not is_kept(as_written(rounded_twice(PASSED[name]), monkeypatch))


@pytest.mark.parametrize("name", PASSED)
def test_two_roundings_in_a_row_stay_two(name):
    assert is_kept(rounded_twice(PASSED[name]).model())


def computed_scale(scale):
    return lambda b: b.add("Mul", b.constant(FLOAT(scale / 2)), b.constant(FLOAT(2)))


def test_computed_scales_are_different_grids():
    grids = [(computed_scale(scale), SIGNED) for scale in (0.125, 0.03125)]
    assert is_kept(rounded_twice(PASSED["nothing"], *grids).model())


def test_scales_that_are_not_stored_as_bytes_are_different_grids():
    builder = rounded_twice()
    for name, tensor in builder.constants.items():
        array = onnx.numpy_helper.to_array(tensor)
        kept = onnx.helper.make_tensor(name, tensor.data_type, tensor.dims, array.reshape(-1))
        builder.constants[name] = kept
    assert is_kept(builder.model())


def test_codes_with_and_without_a_sign_are_different_grids():
    assert is_kept(rounded_twice(PASSED["nothing"], (0.125, SIGNED), (0.125, UNSIGNED)).model())
    builder = rounded_twice(PASSED["nothing"], (0.125, SIGNED), (0.125, UNSIGNED))
    work_around_faults(builder)
    assert [node.op_type for node in builder.nodes].count("Max") == 1


def test_nothing_is_put_between_roundings_to_one_grid_or_after_arithmetic():
    def doubled(builder, x):
        return builder.add("Mul", x, builder.constant(FLOAT(2)))

    def negated(builder, x):
        return builder.add("Sub", builder.constant(FLOAT(0)), x)

    one_grid = rounded_twice(second=(0.125, SIGNED))
    for builder in (one_grid, rounded_twice(doubled), rounded_twice(negated)):
        work_around_faults(builder)
        assert "Max" not in [node.op_type for node in builder.nodes]


NEUTRAL_CALLS = {
    "* 1": lambda y: y * 1,
    "+ 0": lambda y: y + 0,
    "expand": lambda y: y.expand(-1, -1, 8, 8),
    "- 0": lambda y: y - 0,
    "/ 1": lambda y: y / 1,
    "* ones": lambda y: y * torch.ones(1),
    "* new ones": lambda y: y * y.new_ones(1),
    "+ a product with 0": lambda y: torch.addcmul(y, torch.zeros(1), torch.zeros(1)),
}


@pytest.mark.parametrize("kind", ["qdq", "qcdq"])
@pytest.mark.parametrize("name", NEUTRAL_CALLS)
def test_calls_that_change_nothing_keep_the_roundings_on_both_sides(name, kind):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)

        def forward(self, x):
            return self.b(NEUTRAL_CALLS[name](self.a(x)))

    torch.manual_seed(0)
    x = torch.randn(1, 2, 8, 8) * 2
    affine = {"name": "affine", "data_in_width": 8, "weight_width": 8}
    a = {**affine, "data_in_scale": 0.0625, "data_out_width": 8, "data_out_scale": 0.125}
    configs = {"a": {"config": a}, "b": {"config": {**affine, "data_in_scale": 0.03125}}}
    steps = [
        "init_metadata",
        ("add_common_metadata", {"dummy_in": {"x": x}}),
        ("quantize", {"by": "name", **configs}),
    ]
    graph, _ = Pipeline(steps)(MaseGraph(Network().eval()))
    found = Runtime(onnx_model(graph, kind)).run({"x": x.numpy()})["output"]
    # float sums of products in another order
    assert torch.allclose(torch.from_numpy(found), graph.model(x), rtol=0, atol=1e-6)


def grid(builder, scale):
    return builder.constant(np.asarray(scale, FLOAT)), builder.constant(
        np.full(np.shape(scale), 128, np.uint8)
    )


def rounded(builder, x, scale, **axis):
    codes = builder.add("QuantizeLinear", x, *grid(builder, scale), **axis)
    return builder.add("DequantizeLinear", codes, *grid(builder, scale), **axis)


def weight(builder, shape, scale=0.25, **axis):
    codes = 120 + np.arange(np.prod(shape), dtype=np.uint8).reshape(shape) % 16
    return builder.add("DequantizeLinear", builder.constant(codes), *grid(builder, scale), **axis)


ON_CODES = {
    "conv": lambda b, x: b.add("Conv", x, weight(b, (2, 2, 1, 1))),
    "matmul": lambda b, x: b.add("MatMul", x, weight(b, (4, 4))),
    "product": lambda b, x: b.add("MatMul", weight(b, (4, 4)), x),
    "add": lambda b, x: b.add("Add", x, rounded(b, b.add("Neg", x), 0.125)),
    "mul": lambda b, x: b.add("Mul", x, weight(b, (2, 1, 1))),
    "concat": lambda b, x: b.add("Concat", x, weight(b, (1, 2, 4, 4)), axis=2),
    "where": lambda b, x: b.add("Where", b.constant(np.eye(4, dtype=bool)), x, weight(b, (4, 4))),
    "average": lambda b, x: b.add("AveragePool", x, kernel_shape=[2, 2]),
    "mean": lambda b, x: b.add("GlobalAveragePool", x),
    "leaky": lambda b, x: b.add("LeakyRelu", x, alpha=0.25),
    "sigmoid": lambda b, x: b.add("Sigmoid", x),
    "softmax": lambda b, x: b.add("Softmax", x, axis=3),
}  # fmt: skip
CHANNELS = [0.125, 0.25]
WEIGHTS = {
    "add": lambda b, x: b.add("Add", x, weight(b, (2, 1, 1), CHANNELS, axis=0)),
    "mul": lambda b, x: b.add("Mul", x, weight(b, (2, 1, 1), CHANNELS, axis=0)),
    "concat": lambda b, x: b.add("Concat", x, weight(b, (1, 2, 4, 4), CHANNELS), axis=2),
    "where": lambda b, x: b.add(
        "Where", b.constant(np.eye(4, dtype=bool)), x, weight(b, (2, 1, 1), CHANNELS, axis=0)
    ),
    "conv": lambda b, x: b.add("Conv", x, weight(b, (2, 2, 1, 1), CHANNELS)),
    "matmul": lambda b, x: b.add("MatMul", x, weight(b, (4, 4), [1, 2, 4, 8], axis=0)),
}  # fmt: skip


def on_codes(op, before=0.125, after=0.125):
    """An op between two roundings, of which one may have a scale for each channel."""
    builder = ModelBuilder("channels")
    x = builder.input("x", np.float32, [1, 2, 4, 4])
    axes = [{"axis": 1} if np.ndim(scale) else {} for scale in (before, after)]
    y = rounded(builder, op(builder, rounded(builder, x, before, **axes[0])), after, **axes[1])
    builder.output(y, "y", np.float32, [None] * 4)
    return builder


def fails_or_differs(model):
    """Whether the optimiser makes a model that does not run, or gives other numbers."""
    try:
        return not is_kept(model)
    except Exception as error:
        return "must be a scalar" in str(error)


SIDES = [(CHANNELS, 0.125), (0.125, CHANNELS)]
CHANNEL_MODELS = {
    **{
        f"{name} {side}": lambda op=op, scales=scales: on_codes(op, *scales)
        for name, op in ON_CODES.items()
        for side, scales in zip(("after", "before"), SIDES, strict=True)
    },
    **{f"{name} weights": lambda op=op: on_codes(op) for name, op in WEIGHTS.items()},
}


@pytest.mark.parametrize("name", CHANNEL_MODELS)
def test_the_optimiser_still_takes_one_scale_for_those_of_channels(name, monkeypatch):
    assert fails_or_differs(as_written(CHANNEL_MODELS[name](), monkeypatch))


@pytest.mark.parametrize("name", CHANNEL_MODELS)
def test_codes_with_scales_per_channel_are_what_they_are(name):
    assert is_kept(CHANNEL_MODELS[name]().model())


def float_product(op, rank):
    """Floats times weights of 8 bits, whose result is not rounded."""
    builder = ModelBuilder("floats")
    x = builder.input("x", np.float32, [1, 2, 4, 4])
    x = builder.add("Reshape", x, builder.constant(np.array([2, 4, 4] if rank == 3 else [2, 16])))
    y = builder.add(op, x, weight(builder, (4 if rank == 3 else 16, 4)))
    builder.output(y, "y", np.float32, [None] * rank)
    return builder


PRODUCTS = [("MatMul", 2), ("MatMul", 3), ("Gemm", 2)]


@pytest.mark.parametrize(("op", "rank"), PRODUCTS)
def test_the_optimiser_still_rounds_floats_that_meet_weights_of_8_bits(op, rank, monkeypatch):
    assert not is_kept(as_written(float_product(op, rank), monkeypatch), near=1e-3)


@pytest.mark.parametrize(("op", "rank"), PRODUCTS)
def test_floats_that_meet_weights_of_8_bits_are_not_rounded(op, rank):
    assert is_kept(float_product(op, rank).model(), near=1e-5)
