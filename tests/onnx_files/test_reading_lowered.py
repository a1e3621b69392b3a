"""Files that compute with codes, and files with functions of their own, are read as others are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from onnx import TensorProto, helper  # noqa: E402

from chop.onnx.reading import UnreadableModel, lowering, read_model, read_network  # noqa: E402

from .networks import F, array, computed, model, reference, written  # noqa: E402
from .test_reading_quantized import node, quantized  # noqa: E402

MICROSOFT = "com.microsoft"


def scale_of(name, value, point, kind=np.uint8):
    return {f"{name}s": np.asarray(value, F), f"{name}z": np.asarray(point, kind)}


def codes(*shape, seed=0):
    return np.random.default_rng(seed).integers(-100, 100, shape).astype(np.int8)


def conv_net(steps=(2**-4, 2**-6, 2**-3), *, kind=np.uint8, point=128, pool=True):
    """Return a network of QLinearConv, MaxPool of codes and QLinearMatMul."""
    x, w, y = steps
    outputs = 4
    w_scale = np.broadcast_to(np.asarray(w, F), (outputs,)) * 2.0 ** -np.arange(outputs)
    constants = {
        **scale_of("x", x, point, kind),
        **scale_of("w", w_scale, [0] * outputs, np.int8),
        **scale_of("y", y, point, kind),
        **scale_of("v", 2**-7, 0, np.int8),
        **scale_of("o", 2**-2, point, kind),
        "w": codes(outputs, 2, 3, 3),
        "b": np.arange(-300, 300, 150, dtype=np.int32),
        "v": codes(outputs * 4 if pool else outputs * 16, 5, seed=1),
    }
    last = "y"
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], "xq"),
        node(
            "QLinearConv", ["xq", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], "y",
            kernel_shape=[3, 3],
        ),
    ]  # fmt: skip
    if pool:
        nodes.append(node("MaxPool", ["y"], "p", kernel_shape=[2, 2], strides=[2, 2]))
        last = "p"
    nodes += [
        node("Flatten", [last], "f"),
        node("QLinearMatMul", ["f", "ys", "yz", "v", "vs", "vz", "os", "oz"], "o"),
        node("DequantizeLinear", ["o", "os", "oz"], "out"),
    ]
    return model(nodes, {"x": ["batch", 2, 6, 6]}, ["out"], constants)


@pytest.mark.parametrize("settings", [{}, {"kind": np.int8, "point": 0}, {"pool": False}], ids=str)
def test_products_of_codes_equal_those_of_onnxruntime_bit_for_bit(settings, tmp_path):
    file = written(conv_net(**settings), tmp_path)
    graph, network = quantized(file)
    x = {"x": array(2000, 2, 6, 6, scale=3)}
    (ours,), (theirs,) = computed(graph.model, x), reference(file, x)
    assert np.array_equal(ours, theirs)
    assert len(np.unique(ours)) > 50
    assert network.formats["y"]["name"] == "affine"  # as its channels have scales of their own
    assert network.formats["o"]["name"] == "integer"


def test_other_scales_differ_only_where_a_tie_is_near(tmp_path):
    file = written(conv_net((0.03, 0.011, 0.17)), tmp_path)
    graph, _ = quantized(file)
    x = {"x": array(2000, 2, 6, 6, scale=3)}
    (ours,), (theirs,) = computed(graph.model, x), reference(file, x)
    assert (ours != theirs).any(1).mean() < 0.01


@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("turned", [0, 1])
def test_gemm_and_add_of_codes_by_onnxruntime_are_read(rounded, turned, tmp_path):
    shape = (3, 4) if turned else (4, 3)
    constants = {
        **scale_of("x", 2**-4, 128), **scale_of("w", [2**-6, 2**-5, 2**-7], [0] * 3, np.int8),
        **scale_of("y", 2**-3, 128), **scale_of("o", 2**-2, 128),
        "w": codes(*shape), "b": np.array([100, -50, 7], np.int32),
    }  # fmt: skip
    gemm = ["xq", "xs", "xz", "w", "ws", "wz", "b"] + (["ys", "yz"] if rounded else [])
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], "xq"),
        node("QGemm", gemm, "y", MICROSOFT, transB=turned),
    ]
    if rounded:
        nodes += [
            node("QLinearAdd", ["y", "ys", "yz", "y", "ys", "yz", "os", "oz"], "o", MICROSOFT),
            node("DequantizeLinear", ["o", "os", "oz"], "out"),
        ]
    used = {name for each in nodes for name in each.input}
    constants = {name: value for name, value in constants.items() if name in used}
    output = "out" if rounded else "y"
    proto = model(nodes, {"x": ["batch", 4]}, [output], constants, domains={MICROSOFT: 1})
    file = written(proto, tmp_path)
    graph, _ = quantized(file)
    x = {"x": array(2000, 4, scale=3)}
    (ours,), (theirs,) = computed(graph.model, x), reference(file, x)
    assert np.array_equal(ours, theirs)


def test_a_network_of_codes_is_emitted_as_integers(tmp_path):
    graph, _ = quantized(written(conv_net(), tmp_path))
    import torch

    x = torch.from_numpy(array(200, 2, 6, 6, scale=3))
    assert torch.equal(graph.to_integers()(x).float(), graph.model(x))


def test_operators_with_scales_at_run_time_are_refused_with_the_fix(tmp_path):
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["y"]),
    ]
    proto = model(
        nodes, {"x": ["batch", 4]}, ["y"], {"w": codes(4, 3)}, kinds={"y": TensorProto.INT32}
    )
    with pytest.raises(UnreadableModel) as error:
        read_model(written(proto, tmp_path))
    said = str(error.value)
    assert "operators DynamicQuantizeLinear (1), MatMulInteger (1), which cannot be read" in said
    assert said.endswith("with QDQ or QLinear operators, so that its scales are constants")


def test_a_relu_of_codes_around_a_zero_point_is_refused(tmp_path):
    """It compares codes with 0."""
    constants = {**scale_of("x", 2**-4, 3, np.int8)}
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], "xq"),
        node("Relu", ["xq"], "r"),
        node("DequantizeLinear", ["r", "xs", "xz"], "out"),
    ]
    proto = model(nodes, {"x": ["batch", 4]}, ["out"], constants)
    with pytest.raises(UnreadableModel, match="computes with integer codes"):
        read_network(written(proto, tmp_path))


# --- functions


def function(name, nodes, inputs=("a",), outputs=("b",), attributes=()):
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, inputs, outputs, nodes, imports, attributes)


def with_functions(nodes, functions, constants=None):
    proto = model(nodes, {"x": ["batch", 4]}, ["y"], constants, domains={"own": 1})
    proto.functions.extend(functions)
    return proto


def test_functions_of_a_file_are_inlined(tmp_path):
    gated = function(
        "Gated",
        [helper.make_node("Sigmoid", ["a"], ["s"]), helper.make_node("Mul", ["a", "s"], ["b"])],
    )
    layer = function(
        "Layer",
        [
            helper.make_node("Gemm", ["a", "w", "c"], ["h"], transB=1),
            helper.make_node("Gated", ["h"], ["b"], domain="own"),
        ],
        ("a", "w", "c"),
    )
    constants = {"fc.weight": array(4, 4), "fc.bias": array(4), "w2": array(4, 4, seed=1)}
    nodes = [
        node("Layer", ["x", "fc.weight", "fc.bias"], "h", "own"),
        node("Layer", ["h", "w2", "fc.bias"], "y", "own"),
    ]
    file = written(with_functions(nodes, [gated, layer], constants), tmp_path)
    network = read_network(file)
    x = {"x": array(50, 4)}
    np.testing.assert_allclose(
        computed(network.model, x)[0], reference(file, x)[0], rtol=1e-5, atol=1e-5
    )
    assert "fc" in [each.name for each in network.model.graph.nodes]


def test_functions_that_would_fill_the_memory_are_refused(tmp_path):
    """Each calls the one before it ten times."""
    functions = [function("F0", [helper.make_node("Relu", ["a"], ["b"])])]
    for place in range(1, 9):
        names = ["a", *(f"v{i}" for i in range(9)), "b"]
        calls = [
            helper.make_node(f"F{place - 1}", [a], [b], domain="own")
            for a, b in itertools.pairwise(names)
        ]
        functions.append(function(f"F{place}", calls))
    proto = with_functions([node("F8", ["x"], "y", "own")], functions)
    with pytest.raises(UnreadableModel, match="has functions of more than 100,000 nodes in all"):
        read_model(written(proto, tmp_path))


def test_functions_that_call_themselves_are_refused(tmp_path):
    functions = [
        function("F", [helper.make_node("G", ["a"], ["b"], domain="own")]),
        function("G", [helper.make_node("F", ["a"], ["b"], domain="own")]),
    ]
    proto = with_functions([node("F", ["x"], "y", "own")], functions)
    with pytest.raises(UnreadableModel):
        read_model(written(proto, tmp_path))
    with pytest.raises(UnreadableModel, match="calls itself"):
        lowering.inlined(proto, "a file")


# --- initial states


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("given", [True, False], ids=["inputs", "constants"])
def test_recurrent_layers_may_have_initial_states(op, given, tmp_path):
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    constants = {"w": array(1, gates * 3, 4), "r": array(1, gates * 3, 3, seed=1)}
    names = ["h", "c"] if op == "LSTM" else ["h"]
    inputs = {"x": [5, "batch", 4]}
    feeds = {"x": array(5, 7, 4)}
    nodes = []
    for name in names:
        if given:
            inputs[name] = [1, "batch", 3]
            feeds[name] = array(1, 7, 3, seed=3)
        else:  # a learned state, repeated for the batch
            constants |= {f"{name}0": array(1, 1, 3, seed=4), "one": np.array([1, 1, 3])}
            constants |= {"place": np.array([1]), "end": np.array([2])}
            nodes = nodes or [
                node("Shape", ["x"], "shape"),
                node("Slice", ["shape", "place", "end"], "n"),
                helper.make_node("Concat", ["first", "n", "last"], ["sizes"], axis=0),
            ]
            constants |= {"first": np.array([1]), "last": np.array([3])}
            nodes.append(node("Expand", [f"{name}0", "sizes"], name))
    constants.pop("one", None)
    more = {"linear_before_reset": 1} if op == "GRU" else {}
    states = ["w", "r", "", "", *names]
    nodes.append(helper.make_node(op, ["x", *states], ["y"], hidden_size=3, name="y", **more))
    file = written(model(nodes, inputs, ["y"], constants), tmp_path)
    network = read_network(file)
    (ours,), (theirs,) = computed(network.model, feeds), reference(file, feeds)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_one_initial_state_of_two_is_refused(tmp_path):
    constants = {"w": array(1, 12, 4), "r": array(1, 12, 3), "h": array(1, 7, 3)}
    lstm = helper.make_node("LSTM", ["x", "w", "r", "", "", "h"], ["y"], hidden_size=3, name="y")
    proto = model([lstm], {"x": [5, 7, 4]}, ["y"], constants)
    with pytest.raises(UnreadableModel, match="has one initial state of two"):
        read_network(written(proto, tmp_path))
