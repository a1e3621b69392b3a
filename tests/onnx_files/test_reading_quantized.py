"""Files with Q/DQ pairs and QONNX nodes: formats of ours that round as onnxruntime does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from onnx import TensorProto, helper  # noqa: E402

from chop.ir.graph.mase_graph import MaseGraph  # noqa: E402
from chop.onnx.reading import UnreadableModel, read_network  # noqa: E402
from chop.passes import Pipeline  # noqa: E402

from .networks import F, array, computed, model, reference, written  # noqa: E402

QONNX = "qonnx.custom_op.general"


def node(op, inputs, output, domain="", **attributes):
    return helper.make_node(op, inputs, [output], name=output, domain=domain, **attributes)


def quantized(file):
    """Return the network with the formats of the file, as a graph."""
    network = read_network(file)
    examples = {each.name: each.example() for each in network.inputs}
    steps = [
        "init_metadata",
        ("add_common_metadata", {"dummy_in": examples, "add_value": False}),
        ("quantize", network.quantize_options),
    ]
    return Pipeline(steps)(MaseGraph(network.model))[0], network


def pair(name, kind=np.int8, **attributes):
    """Return the nodes that round a value to a grid."""
    inputs = [f"{name}_scale", f"{name}_point"]
    return [
        node("QuantizeLinear", [name, *inputs], f"{name}_q", **attributes),
        node("DequantizeLinear", [f"{name}_q", *inputs], f"{name}_d", **attributes),
    ]


def codes(values, scale, point, low, high, axis=None):
    shape = [1] * values.ndim
    if axis is not None:
        shape[axis] = -1
    scale, point = np.reshape(scale, shape), np.reshape(point, shape)
    return np.clip(np.rint(values / scale) + point, low, high)


def mlp(x_scale, x_point, w_scale, *, kind=np.int8, out=True, bias="int32", axis=None):
    """Return a QDQ network of two layers, as static quantisation writes them."""
    x_point, w_scale = np.array(x_point, kind), np.array(w_scale, F)
    weight = codes(array(6, 4, scale=0.4), w_scale, 0, -128, 127, axis).astype(np.int8)
    b_scale = (F(x_scale) * w_scale).astype(F)
    constants = {
        "x_scale": F(x_scale), "x_point": x_point, "w": weight, "w_scale": w_scale,
        "w_point": np.zeros(w_scale.shape, np.int8), "b_scale": b_scale,
        "b": np.rint(array(6) / b_scale).astype(np.int32), "h_scale": F(0.0625),
        "h_point": np.array(0, kind), "y_scale": F(0.125), "y_point": np.array(0, np.int8),
        "w2": array(3, 6), "w2_scale": F(2**-5), "w2_point": np.int8(0),
    }  # fmt: skip
    per_axis = {"axis": axis} if axis is not None else {}
    nodes = [
        *pair("x"),
        node("DequantizeLinear", ["w", "w_scale", "w_point"], "w_d", **per_axis),
        node("DequantizeLinear", ["b", "b_scale"], "b_d", **({"axis": 0} if per_axis else {})),
        node("Gemm", ["x_d", "w_d", "b_d" if bias == "int32" else "b_f"], "h0", transB=1),
        node("Relu", ["h0"], "h"),
        *pair("h"),
        *pair("w2"),
        node("Gemm", ["h_d", "w2_d"], "y", transB=1),
        *(pair("y") if out else []),
    ]
    if bias != "int32":
        constants["b_f"] = array(6)
        nodes = [each for each in nodes if each.name != "b_d"]
        constants = {k: v for k, v in constants.items() if k not in ("b", "b_scale")}
    if not out:
        constants = {k: v for k, v in constants.items() if not k.startswith("y_")}
    return model(nodes, {"x": ["batch", 4]}, ["y_d" if out else "y"], constants)


POWERS = {
    "signed": mlp(2**-4, 0, 2**-6),
    "unsigned": mlp(2**-4, 0, 2**-6, kind=np.uint8),
    "no output": mlp(2**-4, 0, 2**-6, out=False),
    "float bias": mlp(2**-4, 0, 2**-6, bias="float", out=False),
    "16 bits": mlp(2**-10, 0, 2**-6, kind=np.int16),
    "per channel": mlp(2**-4, 0, 2.0 ** -np.arange(3, 9), axis=0),
    "zero point": mlp(2**-4, 3, 2**-6),
}


@pytest.mark.parametrize("name", POWERS)
def test_scales_that_are_powers_of_two_agree_bit_for_bit(name, tmp_path):
    file = written(POWERS[name], tmp_path)
    graph, network = quantized(file)
    x = {"x": array(1000, 4, scale=3)}
    (ours,), (theirs,) = computed(graph.model, x), reference(file, x)
    assert np.array_equal(ours, theirs)
    wanted = "affine" if name in ("per channel", "zero point") else "integer"
    assert network.formats["h0"]["name"] == wanted


@pytest.mark.parametrize("axis", [None, 0])
def test_other_scales_agree_within_rounding(axis, tmp_path):
    scales = np.linspace(0.003, 0.01, 6) if axis == 0 else 0.0071
    file = written(mlp(0.031, -5, scales, axis=axis), tmp_path)
    graph, _ = quantized(file)
    x = {"x": array(1000, 4, scale=3)}
    (ours,), (theirs,) = computed(graph.model, x), reference(file, x)
    steps = np.abs(ours - theirs) / 0.125
    assert steps.max() <= 1  # a tie of the float sums may go either way
    assert (steps > 0).mean() < 0.01


def test_a_quantised_file_becomes_an_integer_graph_with_the_same_results(tmp_path):
    file = written(POWERS["signed"], tmp_path)
    graph, _ = quantized(file)
    graph.model.eval()
    integers = graph.to_integers()
    x = array(500, 4, scale=3)
    (theirs,) = reference(file, {"x": x})
    assert np.array_equal(integers(torch.from_numpy(x)).numpy(), theirs)


def test_a_residual_block_with_two_grids_agrees_bit_for_bit(tmp_path):
    constants = {
        "x_scale": F(2**-4), "x_point": np.int8(0), "w": array(3, 3, 3, 3, scale=0.3),
        "w_scale": F(2**-7), "w_point": np.int8(0), "c_scale": F(2**-3), "c_point": np.int8(0),
        "s_scale": F(2**-2), "s_point": np.int8(0),
    }  # fmt: skip
    nodes = [
        *pair("x"), *pair("w"), node("Conv", ["x_d", "w_d"], "c", pads=[1, 1, 1, 1]), *pair("c"),
        node("Add", ["c_d", "x_d"], "s"), *pair("s"),
        node("MaxPool", ["s_d"], "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["p"], "g"), node("Flatten", ["g"], "y"),
    ]  # fmt: skip
    file = written(model(nodes, {"x": ["batch", 3, 6, 6]}, ["y"], constants), tmp_path)
    graph, network = quantized(file)
    x = {"x": array(50, 3, 6, 6, scale=3)}
    (ours,), (theirs,) = computed(graph.model, x), reference(file, x)
    assert np.array_equal(ours, theirs)
    # the two operands of the sum have different grids: each is rounded by a layer of its own
    rounds = [n for n, f in network.formats.items() if "weight_width" not in f]
    assert {"c_q", "x_q"} <= set(rounds)


def test_codes_of_few_bits_are_read_from_clips_and_from_small_types(tmp_path):
    constants = {
        "x_scale": F(2**-2), "x_point": np.int8(0), "low": np.int8(-7), "high": np.int8(7),
        "w_scale": F(2**-2), "w_point": np.array(0, np.int8),
    }  # fmt: skip
    proto = model(
        [
            node("QuantizeLinear", ["x", "x_scale", "x_point"], "x_q"),
            node("Clip", ["x_q", "low", "high"], "x_c"),
            node("DequantizeLinear", ["x_c", "x_scale", "x_point"], "x_d"),
            node("DequantizeLinear", ["w", "w_scale"], "w_d"),
            node("MatMul", ["x_d", "w_d"], "y"),
        ],
        {"x": ["batch", 4]},
        ["y"],
        {k: v for k, v in constants.items() if k != "w_point"},
    )
    weight = np.arange(-8, 8, dtype=np.int8).reshape(4, 4)[:, :3]
    proto.graph.initializer.append(
        helper.make_tensor("w", TensorProto.INT4, [4, 3], weight.reshape(-1).tolist())
    )
    file = written(proto, tmp_path)
    graph, network = quantized(file)
    config = network.formats["y"]
    assert (config["data_in_width"], config["data_in_overflow"]) == (4, "symmetric")
    assert config["weight_width"] == 4
    x = {"x": array(500, 4, scale=3)}
    (ours,), (theirs,) = computed(graph.model, x), reference(file, x)
    assert np.array_equal(ours, theirs)


def quant_model(width=4, *, narrow=0, signed=1, rounding="ROUND", scale=2**-2, point=0.0):
    """Return a QONNX network of one layer."""
    constants = {
        "s": np.array(scale, F), "z": F(point), "n": F(width), "w": array(4, 3), "ws": F(2**-3),
        "zero": F(0), "eight": F(8), "b": array(3),
    }  # fmt: skip
    settings = {"narrow": narrow, "signed": signed, "rounding_mode": rounding}
    nodes = [
        node("Quant", ["x", "s", "z", "n"], "x_d", QONNX, **settings),
        node(
            "Quant", ["w", "ws", "zero", "eight"], "w_d", QONNX,
            narrow=0, signed=1, rounding_mode="ROUND",
        ),
        node("MatMul", ["x_d", "w_d"], "fc"),
        node("Add", ["fc", "b"], "y"),
    ]  # fmt: skip
    return model(nodes, {"x": ["batch", 4]}, ["y"], constants, domains={QONNX: 1})


def quant(x, scale, point, width, *, narrow=0, signed=1, rounding="ROUND"):
    """Round as the definition of QONNX's Quant says."""
    high = 2 ** (width - 1) - 1 if signed else 2**width - 1 - narrow
    low = -(2 ** (width - 1)) + narrow if signed else 0
    whole = np.clip(x / scale + point, low, high)
    return ((ROUND[rounding](whole) - point) * scale).astype(F)


ROUND = {
    "ROUND": np.rint,
    "HALF_EVEN": np.rint,
    "FLOOR": np.floor,
    "CEIL": np.ceil,
    "DOWN": np.fix,
    "UP": lambda x: np.sign(x) * np.ceil(np.abs(x)),
    "HALF_UP": lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5),
    "HALF_DOWN": lambda x: np.sign(x) * np.ceil(np.abs(x) - 0.5),
}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"width": 3, "narrow": 1},
        {"width": 5, "signed": 0},
        {"width": 6, "rounding": "FLOOR"},
        {"width": 5, "signed": 0, "rounding": "HALF_UP"},
        {"width": 5, "signed": 0, "rounding": "DOWN"},
        {"width": 7, "scale": 0.3},
        {"width": 8, "point": 3.0},
        {"width": 8, "point": 4.0},
    ],
    ids=str,
)
def test_qonnx_agrees_with_its_definition(settings, tmp_path):
    file = written(quant_model(**settings), tmp_path)
    graph, network = quantized(file)
    x = array(500, 4, scale=3)
    if settings.get("point", 0) % 2 == 0:  # an odd one makes QONNX round ties to odd codes
        x[::2] = np.rint(x[::2] * 8) / 8  # half of the multiples of an eighth are ties
    rest = {k: v for k, v in settings.items() if k not in ("scale", "point", "width")}
    scale, point = F(settings.get("scale", 2**-2)), settings.get("point", 0.0)
    rounded = quant(x, scale, point, settings.get("width", 4), **rest)
    wanted = rounded @ quant(array(4, 3), F(2**-3), 0, 8) + array(3)
    (ours,) = computed(graph.model, {"x": x})
    np.testing.assert_allclose(ours, wanted, rtol=1e-6, atol=1e-6)
    assert network.formats["fc"]["name"] == (
        "affine" if "scale" in settings or "point" in settings else "integer"
    )


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"rounding": "CEIL"}, "rounds by CEIL"),
        ({"rounding": "HALF_UP"}, "rounds by HALF_UP, which rounds negative numbers ties away"),
        ({"rounding": "DOWN"}, "rounds by DOWN, which rounds negative numbers towards zero"),
        ({"rounding": "STOCHASTIC"}, "which QONNX does not define"),
        ({"width": 2.5}, "not an integer"),
        ({"scale": -1.0}, "not a positive, finite number"),
        ({"signed": 0, "narrow": 1, "width": 4}, "codes from 0 to 14"),
        ({"rounding": "FLOOR", "scale": 0.3}, "rounds ties up or down"),
        ({"width": 20, "scale": 0.3}, "has 20 bits"),
    ],
    ids=str,
)
def test_a_rounding_that_no_format_has_is_refused_by_the_name_of_its_node(
    settings, reason, tmp_path
):
    file = written(quant_model(**settings), tmp_path)
    with pytest.raises(UnreadableModel, match=f"node 'x_d' .Quant.*{reason}"):
        read_network(file)


@pytest.mark.parametrize("mode", ROUND)
def test_constants_are_rounded_as_by_qonnx_in_every_mode(mode, tmp_path, package):
    """Also in those that no format of an activation has."""
    package("qonnx")
    from qonnx.custom_op.general.intquant import int_quant

    weight = np.concatenate([np.arange(-20, 20, dtype=F) / 16, array(40)]).reshape(8, 10)
    constants = {"w": weight, "s": F(2**-3), "z": F(0), "n": F(4)}
    nodes = [
        node("Quant", ["w", "s", "z", "n"], "w_d", QONNX, narrow=0, signed=1, rounding_mode=mode),
        node("MatMul", ["x", "w_d"], "y"),
    ]
    proto = model(nodes, {"x": ["batch", 8]}, ["y"], constants, domains={QONNX: 1})
    network = read_network(written(proto, tmp_path))
    width = np.array(4.0, F)  # as the executor passes it
    wanted = int_quant(weight, F(2**-3), F(0), width, True, False, mode)
    (ours,) = computed(network.model, {"x": np.eye(8, dtype=F)})
    assert np.array_equal(ours, wanted)


def test_ties_after_a_relu_are_rounded_up_by_half_up_with_a_sign(tmp_path):
    proto = quant_model(width=5, rounding="HALF_UP")
    for each in proto.graph.node:
        each.input[:] = ["r" if name == "x" else name for name in each.input]
    proto.graph.node.insert(0, node("Relu", ["x"], "r"))
    graph, network = quantized(written(proto, tmp_path))
    assert network.formats["fc"]["data_in_rounding"] == "up"
    x = np.rint(array(500, 4, scale=3) * 8) / 8
    rounded = quant(np.maximum(x, 0), F(2**-2), 0, 5, rounding="HALF_UP")
    wanted = rounded @ quant(array(4, 3), F(2**-3), 0, 8) + array(3)
    (ours,) = computed(graph.model, {"x": x.astype(F)})
    np.testing.assert_allclose(ours, wanted, rtol=1e-6, atol=1e-6)


def test_a_weight_in_blocks_stays_in_float_with_its_numbers(tmp_path):
    weight = np.arange(-16, 16, dtype=np.int8).reshape(8, 4)
    constants = {"w": weight, "s": np.abs(array(2, 4)) + F(0.1)}
    nodes = [
        node("DequantizeLinear", ["w", "s"], "w_d", axis=0, block_size=4),
        node("MatMul", ["x", "w_d"], "y"),
    ]
    file = written(model(nodes, {"x": ["batch", 8]}, ["y"], constants), tmp_path)
    network = read_network(file)
    assert not network.formats
    x = {"x": array(20, 8)}
    (ours,), (theirs,) = computed(network.model, x), reference(file, x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_arithmetic_on_codes_is_refused(tmp_path):
    constants = {"x_scale": F(0.5), "x_point": np.int8(0)}
    nodes = [
        node("QuantizeLinear", ["x", "x_scale", "x_point"], "x_q"),
        node("Add", ["x_q", "x_q"], "y"),
    ]
    proto = model(nodes, {"x": ["batch", 4]}, ["y"], constants, kinds={"y": TensorProto.INT8})
    with pytest.raises(UnreadableModel, match=r"node 'y' .Add. computes with integer codes"):
        read_network(written(proto, tmp_path))
