"""A quantised file computes what the integer graph computes, bit for bit."""

import itertools
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from chop.integers import LinearCodes  # noqa: E402
from chop.integers.digest import graph_digest  # noqa: E402
from chop.onnx.integers.registry import WRITERS  # noqa: E402
from chop.passes import run_pass  # noqa: E402
from chop.passes.graph.interface.export_onnx import ExportError, onnx_model  # noqa: E402

VECTORS = 10_000


def integer(data, weight, **others):
    (width, frac), (weight_width, weight_frac) = data, weight
    return {
        "name": "integer",
        "data_in_width": width,
        "data_in_frac_width": frac,
        "weight_width": weight_width,
        "weight_frac_width": weight_frac,
        **others,
    }


def affine(data, weight, **others):
    return {"name": "affine", "data_in_width": data, "weight_width": weight, **others}


W8A8, W6A6, W4A8 = integer((8, 4), (8, 6)), integer((6, 3), (6, 4)), integer((8, 4), (4, 3))
PER_CHANNEL = affine(
    *(8, 8), weight_axis=0, weight_power_of_two=True, data_in_power_of_two=True,
    data_in_signed=False, data_in_zero_point="calibrated",
)  # fmt: skip


def dense(*widths):
    layers = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def convolutions():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 5)),
    )


NETWORKS = {
    "jsc-tiny": (lambda: dense(16, 5), (16,)),
    "jsc-s": (lambda: dense(16, 64, 32, 32, 32, 5), (16,)),
    "conv": (convolutions, (3, 8, 8)),
}


def quantized(traced, network, config):
    """Return the quantised graph of a network, and vectors."""
    build, shape = NETWORKS[network]
    x = 2 * torch.randn(VECTORS, *shape)
    steps = []
    if config["name"] == "affine":
        steps.append(("calibrate", {"input_generator": iter([{"input": x[:500]}]), "silent": True}))
    formats = {"by": "type", "default": {"config": {"name": None}}}
    for op in ("linear", "conv2d") if network == "conv" else ("linear",):
        formats[op] = {"config": config}
    return traced(build(), {"input": x[:2]}, *steps, ("quantize", formats)), x


def codes_of(outputs, integers):
    """Return the codes of float results, which must be whole."""
    step = integers.codes(integers.outputs[0]).scale.value
    codes = outputs[0].double() / step
    assert torch.equal(codes, codes.round())
    return codes.long()


ALL = [(optimize, threads) for optimize in (False, True) for threads in (1, 2)]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        (W8A8, ("qdq", "qcdq")),
        (W6A6, ("qcdq",)),
        (W4A8, ("qdq", "qcdq")),
        (PER_CHANNEL, ("qdq",)),
        (integer((8, 4), (8, 6), bias_width=8, bias_frac_width=12), ("qdq",)),
        (integer((8, 4), (8, 6), data_in_rounding="floor"), ("qdq",)),
        (integer((8, 4), (8, 6), data_in_rounding="up"), ("qdq",)),
        (integer((5, 2), (5, 3), overflow="symmetric"), ("qcdq",)),
        (integer((16, 8), (16, 10)), ("qdq",)),
        (integer((12, 6), (8, 6)), ("qcdq",)),
    ],
    ids=["W8A8", "W6A6", "W4A8", "channels", "fine bias", "floor", "up", "symmetric", "16", "12"],
)
def test_onnxruntime_gives_the_codes_of_the_integer_graph(network, config, kinds, traced, run):
    graph, x = quantized(traced, network, config)
    integers = graph.to_integers()
    expected = integers.run(x)
    for kind in kinds:
        file = onnx_model(graph, kind)
        onnx.checker.check_model(file, full_check=True)
        for optimize, threads in ALL:
            outputs = run(file, {"input": x}, optimize=optimize, threads=threads)
            assert torch.equal(codes_of(outputs, integers), expected), (kind, optimize, threads)


@pytest.mark.parametrize("network", ["jsc-s", "conv"])
def test_float_scales_differ_only_where_a_tie_is_near(network, traced, run):
    """onnxruntime multiplies by float32 scales, the integer graph by integers of 31 bits."""
    config = affine(8, 8, weight_axis=0, data_in_signed=False, data_in_zero_point="calibrated")
    graph, x = quantized(traced, network, config)
    expected = graph.to_integers()(x)
    for optimize in (False, True):
        (found,) = run(onnx_model(graph, "qdq"), {"input": x}, optimize=optimize)
        far = (found.double() - expected.double()).abs() > 1e-5 * expected.abs().max()
        assert far.any(1).float().mean() < 1e-3


@pytest.mark.parametrize(
    ("network", "config", "kernels"),
    [("jsc-s", W8A8, 5), ("jsc-s", W6A6, 5), ("conv", W8A8, 3), ("conv", PER_CHANNEL, 3)],
)
def test_onnxruntime_runs_all_layers_as_integer_kernels(network, config, kernels, traced, tmp_path):
    import onnxruntime as ort

    graph, _ = quantized(traced, network, config)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    file = onnx_model(graph, "qcdq").SerializeToString()
    ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    ops = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert sum(op in ("QGemm", "QLinearConv") for op in ops) == kernels
    assert not {"Gemm", "Conv", "FusedGemm", "FusedConv", "DequantizeLinear"} & {*ops}


def constants(file):
    return {c.name: onnx.numpy_helper.to_array(c) for c in file.graph.initializer}


def test_weights_are_integers_of_their_width_with_the_name_of_the_state_dict(traced):
    stored = {}
    for label, config in (("W8A8", W8A8), ("W4A8", W4A8)):
        graph, _ = quantized(traced, "jsc-tiny", config)
        stored[label] = constants(onnx_model(graph, "qdq"))
    assert stored["W8A8"]["0.weight"].dtype.name == "int8"
    assert stored["W4A8"]["0.weight"].dtype.name == "int4"
    assert stored["W8A8"]["0.bias"].dtype.name == "int32"
    assert stored["W8A8"]["0.bias_scale"] == 2.0**-10  # of the products


def test_a_bias_that_is_not_on_the_grid_of_the_products_stays_in_float(traced):
    config = integer((8, 4), (8, 6), bias_width=8, bias_frac_width=12)
    graph, _ = quantized(traced, "jsc-tiny", config)
    file = onnx_model(graph, "qdq")
    assert constants(file)["0.bias"].dtype.name == "float32"
    (gemm,) = (node for node in file.graph.node if node.op_type == "Gemm")
    assert len(gemm.input) == 2, "onnxruntime would round the bias"


def test_weights_above_16_bits_stay_in_float_so_that_onnxruntime_loads_the_file(traced, run):
    """With int32 weights its optimiser makes kernels that do not exist."""
    graph, x = quantized(traced, "conv", integer((8, 4), (20, 18)))
    file = onnx_model(graph, "qdq")
    assert constants(file)["0.weight"].dtype.name == "float32"
    for optimize in (False, True):
        (found,) = run(file, {"input": x[:50]}, optimize=optimize)
        assert torch.allclose(found, graph.model(x[:50]), atol=1e-5)


def test_scales_of_a_grouped_transposed_convolution_differ_from_those_of_its_bias(traced, run):
    x = torch.randn(50, 4, 5, 5)
    config = affine(8, 8, weight_axis=1, weight_power_of_two=True, data_in_power_of_two=True)
    calibrated = ("calibrate", {"input_generator": iter([{"input": x}]), "silent": True})
    formats = {"by": "type", "default": {"config": {"name": None}}}
    formats["convtranspose2d"] = {"config": config}
    layer = nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2)
    graph = traced(nn.Sequential(layer), {"input": x[:2]}, calibrated, ("quantize", formats))
    (found,) = run(onnx_model(graph, "qdq"), {"input": x})
    assert torch.allclose(found, graph.model(x), atol=1e-6)


@pytest.mark.parametrize(
    ("config", "kind", "text"),
    [
        (W6A6, "qdq", "rounds to 6 bits, which QuantizeLinear cannot express; use `format='qcdq'`"),
        (integer((4, 2), (4, 2)), "qdq", "rounds to 4 bits, which QuantizeLinear cannot express"),
        (integer((8, 4), (8, 4), overflow="symmetric"), "qdq", "rounds to a symmetric range"),
        (integer((8, 4), (8, 4), overflow="wrap"), "qcdq", "wraps codes of activations around"),
        (integer((20, 4), (8, 4)), "qcdq", "rounds to 20 bits, and Q/DQ has at most 16"),
        (
            integer((8, 4), (8, 4), rounding="up"),
            "qonnx",
            "rounds negative ties up, and QONNX away",
        ),
        (integer((8, 4), (8, 4), overflow="wrap"), "qonnx", "wraps codes of activations around"),
        (PER_CHANNEL, "qonnx", "has a zero point, which QONNX rounds in another way"),
    ],
)
def test_what_a_kind_cannot_hold_is_refused_with_the_node_and_the_fix(traced, config, kind, text):
    graph, _ = quantized(traced, "jsc-tiny", config)
    with pytest.raises(ExportError) as error:
        onnx_model(graph, kind)
    assert text in str(error.value)
    assert str(error.value).startswith("node '_0' (linear) ")


def test_float_layers_are_refused_all_at_once(traced):
    graph = traced(dense(16, 8, 5), {"input": torch.randn(2, 16)})
    with pytest.raises(ExportError, match=r"these layers are in float: _0, _2; quantise them"):
        onnx_model(graph, "qdq")


def test_a_quantised_network_is_no_float_network(traced):
    graph, _ = quantized(traced, "jsc-tiny", W8A8)
    with pytest.raises(ExportError, match="these nodes are quantised: _0; use `format='qdq'"):
        onnx_model(graph, "onnx")


def test_nan_in_a_quantised_weight_is_refused(traced):
    graph, _ = quantized(traced, "jsc-tiny", W8A8)
    with torch.no_grad():
        graph.model.get_submodule("0").weight[0, 0] = float("nan")
    with pytest.raises(ExportError, match=r"0\.weight has NaN"):
        onnx_model(graph, "qdq")


def test_the_pass_writes_a_file_with_facts(traced, tmp_path):
    graph, _ = quantized(traced, "jsc-tiny", W8A8)
    options = {"save_path": tmp_path / "a" / "net.onnx", "format": "qdq", "accuracy": 0.75}
    _, info = run_pass("export_onnx", graph, options)
    file = onnx.load(info["file"])
    facts = {prop.key: prop.value for prop in file.metadata_props}
    assert facts["mase.format"] == "qdq"
    assert facts["mase.accuracy"] == "0.75"
    assert facts["mase.network"] == graph_digest(graph.to_integers())
    assert json.loads(facts["mase.formats"])["_0"]["weight_width"] == 8
    assert info["inputs"] == ["input"]
    assert info["outputs"] == ["output"]


def test_sums_that_float32_cannot_hold_are_noted(traced, tmp_path):
    graph, _ = quantized(traced, "jsc-tiny", integer((16, 8), (16, 8)))
    options = {"save_path": tmp_path / "net.onnx", "format": "qdq", "silent": True}
    _, info = run_pass("export_onnx", graph, options)
    assert "use `format='integer'` if every bit matters" in info["notes"][0]


def test_a_rounded_result_is_rounded_in_the_file(traced, run):
    config = W8A8 | {"data_out_width": 8, "data_out_frac_width": 3}
    graph, x = quantized(traced, "jsc-tiny", config)
    (found,) = run(onnx_model(graph, "qdq"), {"input": x})
    assert torch.equal(found, graph.model(x))


class Residual(nn.Module):
    """One value with two readers, one of which does not round it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        y = torch.relu(self.first(x))
        return y + self.second(y)


def test_a_relu_that_is_read_unrounded_stays_in_float(traced, run):
    x = torch.randn(1000, 16)
    quantize = ("quantize", {"by": "type", "linear": {"config": W8A8}})
    graph = traced(Residual(), {"x": x[:2]}, quantize)
    for optimize in (False, True):
        (found,) = run(onnx_model(graph, "qdq"), {"x": x}, optimize=optimize)
        assert torch.equal(found, graph.model(x))


class Functions(nn.Module):
    """Quantised functions, with constants and numbers among their operands."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 16)), nn.Parameter(torch.randn(8))
        self.shift = nn.Parameter(torch.randn(1, 8))

    def forward(self, x):
        y = F.relu(F.linear(x, self.weight, self.bias)) + self.shift
        return torch.matmul(y, y.transpose(0, 1)[:, :5]) * 0.3


def test_quantised_functions_are_exported(traced, run):
    x = torch.randn(64, 16)
    formats = {op: {"config": W8A8} for op in ("linear", "relu", "add", "matmul", "mul")}
    graph = traced(Functions(), {"x": x[:6]}, ("quantize", {"by": "type", **formats}))
    for optimize in (False, True):
        (found,) = run(onnx_model(graph, "qdq"), {"x": x}, optimize=optimize)
        assert torch.equal(found, graph.model(x))


class Wide(nn.Module):
    """Layers with other weights than those of a matrix product."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(6, 6)
        self.back = nn.ConvTranspose2d(4, 3, 3)

    def forward(self, x):
        return self.back(self.fc(self.conv(x)))


def test_transposed_convolutions_and_wide_linear_layers_are_exported(traced, run):
    x = torch.randn(6, 3, 8, 8)
    formats = {op: {"config": W8A8} for op in ("linear", "conv2d", "convtranspose2d")}
    graph = traced(Wide(), {"x": x[:2]}, ("quantize", {"by": "type", **formats}))
    for optimize in (False, True):
        (found,) = run(onnx_model(graph, "qdq"), {"x": x}, optimize=optimize)
        assert torch.equal(found, graph.model(x))


class Mixed(nn.Module):
    """A layer with products inside, before a linear one."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.fc = layer, nn.Linear(16, 4)

    def forward(self, x):
        twice = isinstance(self.layer, nn.MultiheadAttention)
        return self.fc((self.layer(x, x, x) if twice else self.layer(x))[0])


@pytest.mark.parametrize(
    ("op", "build"),
    [
        ("attention", lambda: nn.MultiheadAttention(16, 4, batch_first=True)),
        ("lstm", lambda: nn.LSTM(16, 16, batch_first=True)),
    ],
)
def test_layers_with_rounding_inside_are_refused_and_stay_in_float(op, build, traced, run):
    x = torch.randn(3, 5, 16)
    linear = {"by": "type", "linear": {"config": W8A8}}
    graph = traced(Mixed(build()), {"x": x}, ("quantize", linear | {op: {"config": W8A8}}))
    with pytest.raises(ExportError, match="rounds values inside, which no file holds; leave"):
        onnx_model(graph, "qdq")
    graph = traced(Mixed(build()), {"x": x}, ("quantize", linear))
    (found,) = run(onnx_model(graph, "qdq"), {"x": x})
    # a float before the rounding may lie beside a tie
    assert ((found - graph.model(x)).abs() > 1e-5).float().mean() < 0.01


def test_a_network_without_quantised_nodes_is_refused(traced):
    graph = traced(nn.Sequential(nn.ReLU()), {"input": torch.randn(2, 4)})
    with pytest.raises(ExportError, match="no node of this one is quantised; use `format='onnx'`"):
        onnx_model(graph, "qdq")


def test_layers_with_hooks_are_refused(traced):
    graph, _ = quantized(traced, "jsc-tiny", W8A8)
    graph.model.get_submodule("0").register_forward_hook(lambda *_: None)
    with pytest.raises(ExportError, match="hooks, which may change their values: _0; remove"):
        onnx_model(graph, "qdq")


class Returns(nn.Module):
    def __init__(self, results):
        super().__init__()
        self.one, self.other, self.results = nn.Linear(4, 3), nn.Linear(4, 2), results

    def forward(self, x):
        return self.results(torch.relu(self.one(x)), self.other(x))


@pytest.mark.parametrize(
    ("results", "names"),
    [
        (lambda y, z: {"logits": y, "box": z}, ["logits", "box"]),
        (lambda y, z: {"logits": y, "hidden": (z, y)}, ["logits", "hidden_0", "hidden_1"]),
        (lambda y, z: (y, z), ["output_0", "output_1"]),
    ],
    ids=["dict", "nested, one twice", "tuple"],
)
def test_results_have_the_same_names_in_files_of_all_kinds(results, names, traced, run):
    x = torch.randn(50, 4)
    quantize = ("quantize", {"by": "type", "linear": {"config": W8A8}})
    graph = traced(Returns(results), {"x": x[:2]}, quantize)
    expected = graph.to_integers()(x)
    for kind in ("qdq", "qcdq", "qonnx", "integer"):
        file = onnx_model(graph, kind)
        onnx.checker.check_model(file)
        found = [output.name for output in file.graph.output]
        values = [name for name in found if not name.endswith("_codes")]
        assert values == names, kind
        if kind != "qonnx":
            given = dict(zip(found, run(file, {"x": x}), strict=True))
            assert all(torch.equal(given[n], e) for n, e in zip(names, expected, strict=True))


def test_the_integer_format_is_that_of_the_integer_graph(traced, run):
    graph, x = quantized(traced, "jsc-tiny", W8A8)
    file, integers = onnx_model(graph, "integer"), graph.to_integers()
    assert [output.name for output in file.graph.output] == ["output", "output_codes"]
    _, codes = run(file, {"input": x})
    assert torch.equal(codes, integers.run(x))
    facts = {entry.key: entry.value for entry in file.metadata_props}
    assert facts["mase.network"] == graph_digest(integers)


def test_an_op_without_integer_nodes_is_refused(traced, monkeypatch):
    monkeypatch.delitem(WRITERS._items, LinearCodes)
    graph, _ = quantized(traced, "jsc-tiny", W8A8)
    with pytest.raises(ExportError, match="the format `integer` cannot be written: "):
        onnx_model(graph, "integer")


def test_padded_values_with_scales_by_channel_that_moved_are_not_rounded_again(traced, run):
    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(6, 4)

        def forward(self, x):
            turned = self.a(x).transpose(1, 2)
            return self.b(nn.functional.pad(turned, (0, 0, 1, 1)).transpose(1, 2))

    x = {"x": 2 * torch.randn(16, 4, 4)}
    plain = {"name": "affine", "data_in_width": 8, "data_in_scale": 0.03125, "weight_width": 8}
    by_channel = {"data_out_width": 8, "data_out_axis": 2}
    by_channel["data_out_scale"] = [2**-4, 2**-5, 2**-6, 2**-5]
    configs = {"a": {"config": plain | by_channel}, "b": {"config": plain}}
    graph = traced(Padded(), x, ("quantize", {"by": "name", **configs}))
    with torch.no_grad():
        wanted = graph.model(**x)
    for optimize in (True, False):
        (found,) = run(onnx_model(graph, "qdq"), x, optimize=optimize)
        torch.testing.assert_close(found, wanted)
