"""Whole networks: as Keras and PyTorch write them, for any batch, under sensible names."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from onnx import TensorProto, helper  # noqa: E402

from chop.ir.graph.mase_graph import MaseGraph  # noqa: E402
from chop.onnx.reading import read_model, read_network  # noqa: E402
from chop.passes import Pipeline  # noqa: E402

from .networks import F, array, computed, model, reference, written  # noqa: E402


def node(op, inputs, output, name=None, **attributes):
    outputs = output if isinstance(output, list) else [output]
    return helper.make_node(op, inputs, outputs, name=name or outputs[0], **attributes)


def keras(classes=5):
    """Return a network as tf2onnx writes those of Keras: channels last, SAME padding."""
    scope = "StatefulPartitionedCall/sequential"
    constants = {
        "k1": array(4, 1, 3, 3), "b1": array(4), "k2": array(8, 4, 3, 3, scale=0.3), "b2": array(8),
        "shape": np.array([-1, 7 * 7 * 8]), "w": array(7 * 7 * 8, classes, scale=0.1),
        "b": array(classes),
    }  # fmt: skip
    same, pool = {"auto_pad": "SAME_UPPER"}, {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node("Transpose", ["image"], "t", perm=[0, 3, 1, 2]),
        node("Conv", ["t", "k1", "b1"], "c1", f"{scope}/conv2d/Conv2D", strides=[2, 2], **same),
        node("Relu", ["c1"], "r1", f"{scope}/conv2d/Relu"),
        node("Conv", ["r1", "k2", "b2"], "c2", f"{scope}/conv2d_1/Conv2D", **same),
        node("Relu", ["c2"], "r2", f"{scope}/conv2d_1/Relu"),
        node("MaxPool", ["r2"], "p", f"{scope}/max_pooling2d/MaxPool", **pool),
        node("Transpose", ["p"], "back", perm=[0, 2, 3, 1]),
        node("Reshape", ["back", "shape"], "f", f"{scope}/flatten/Reshape"),
        node("MatMul", ["f", "w"], "m", f"{scope}/dense/MatMul"),
        node("Add", ["m", "b"], "y", f"{scope}/dense/BiasAdd"),
    ]
    return model(nodes, {"image": ["unk__12", 28, 28, 1]}, ["y"], constants, opset=13)


def pytorch(opset=17, batch="batch"):
    """Return an MLP as PyTorch writes it."""
    constants = {
        "layers.0.weight": array(32, 16, scale=0.3), "layers.0.bias": array(32),
        "layers.2.weight": array(5, 32, scale=0.3), "layers.2.bias": array(5),
    }  # fmt: skip
    nodes = [
        node("Gemm", ["x", "layers.0.weight", "layers.0.bias"], "h", "/layers/layers.0/Gemm",
             transB=1),
        node("Relu", ["h"], "r", "/layers/layers.1/Relu"),
        node("Gemm", ["r", "layers.2.weight", "layers.2.bias"], "y", "/layers/layers.2/Gemm",
             transB=1),
    ]  # fmt: skip
    return model(nodes, {"x": [batch, 16]}, ["y"], constants, opset=opset)


def agree(file, feeds, **options):
    network = read_model(file, **options)
    for ours, theirs in zip(computed(network, feeds), reference(file, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    return network


def test_a_network_of_keras_agrees_for_any_batch(tmp_path):
    file = written(keras(), tmp_path)
    for batch in (1, 6):
        network = agree(file, {"image": array(batch, 28, 28, 1)})
    graph = MaseGraph(network)
    layers = {n.name: type(graph.modules[n.target]) for n in graph.nodes if n.op == "call_module"}
    assert layers == {
        "sequential_conv2d": nn.Conv2d,
        "sequential_conv2d_relu": nn.ReLU,
        "sequential_conv2d_1": nn.Conv2d,
        "sequential_conv2d_1_relu": nn.ReLU,
        "sequential_max_pooling2d": nn.MaxPool2d,
        "sequential_dense": nn.Linear,
    }


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 21, 23, 25])
def test_a_network_of_pytorch_has_the_names_of_its_layers(opset, tmp_path):
    file = written(pytorch(opset), tmp_path)
    network = agree(file, {"x": array(7, 16)})
    names = [f"layers.{i}.{n}" for i in (0, 2) for n in ("weight", "bias")]
    assert list(network.state_dict()) == names
    assert [n.name for n in network.graph.nodes][1:-1] == ["layers_0", "layers_1", "layers_2"]


def test_a_file_for_one_sample_is_read_for_any_batch(tmp_path):
    constants = {"w": array(4, 1, 3, 3), "shape": np.array([1, 64]), "v": array(64, 5)}
    nodes = [
        node("Conv", ["x", "w"], "c", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Reshape", ["c", "shape"], "f"),
        node("MatMul", ["f", "v"], "y"),
    ]
    file = written(model(nodes, {"x": [1, 1, 8, 8]}, ["y"], constants), tmp_path)
    network = agree(file, {"x": array(1, 1, 8, 8)})
    x = torch.from_numpy(array(6, 1, 8, 8))
    each = torch.cat([network(row) for row in x.split(1)])
    torch.testing.assert_close(network(x), each)


def test_a_batch_that_cannot_be_changed_stays_as_it_is(tmp_path):
    constants = {"w": array(3, 3)}  # multiplies the samples with each other
    nodes = [node("MatMul", ["w", "x"], "y")]
    file = written(model(nodes, {"x": [3, 4]}, ["y"], constants), tmp_path)
    assert read_network(file).inputs[0].shape == (3, 4)
    agree(file, {"x": array(3, 4)})


def test_shapes_that_are_computed_from_the_batch_are_read(tmp_path):
    constants = {"zero": np.array(0), "minus": np.array([-1]), "axes": np.array([0])}
    nodes = [
        node("Shape", ["x"], "s"),
        node("Gather", ["s", "zero"], "n"),
        node("Unsqueeze", ["n", "axes"], "u"),
        node("Concat", ["u", "minus"], "shape", axis=0),
        node("Reshape", ["x", "shape"], "y"),
    ]
    file = written(model(nodes, {"x": ["batch", 3, 4]}, ["y"], constants), tmp_path)
    network = agree(file, {"x": array(6, 3, 4)})
    (call,) = (n for n in network.graph.nodes if n.op == "call_function")
    assert call.target is torch.flatten


def test_two_free_sizes_are_kept_apart(tmp_path):
    constants = {"parts": np.array([0, 0, 2, 4]), "whole": np.array([0, 0, 8])}
    nodes = [
        node("Reshape", ["x", "parts"], "p"),
        node("Transpose", ["p"], "t", perm=[0, 2, 1, 3]),
        node("Softmax", ["t"], "a"),
        node("Transpose", ["a"], "b", perm=[0, 2, 1, 3]),
        node("Reshape", ["b", "whole"], "y"),
    ]
    file = written(model(nodes, {"x": ["batch", "time", 8]}, ["y"], constants), tmp_path)
    for shape in ((2, 5, 8), (7, 3, 8)):
        agree(file, {"x": array(*shape)})
    agree(file, {"x": array(2, 5, 8)}, sizes={"time": 5})


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_recurrent_layers_agree(op, direction, tmp_path):
    gates, ways = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2 if direction == "bidirectional" else 1
    constants = {
        "w": array(ways, gates * 6, 4), "r": array(ways, gates * 6, 6, seed=1),
        "b": array(ways, gates * 12, seed=2),
    }  # fmt: skip
    more = {"linear_before_reset": 1} if op == "GRU" else {}
    outputs = ["y", "h", "c"][: 3 if op == "LSTM" else 2]
    nodes = [
        node(op, ["x", *constants], outputs, "rnn", hidden_size=6, direction=direction, **more)
    ]
    file = written(model(nodes, {"x": [5, "batch", 4]}, outputs, constants), tmp_path)
    network = agree(file, {"x": array(5, 3, 4)})
    assert type(network.get_submodule("rnn")) is getattr(nn, op)


def test_a_lookup_in_a_constant_is_an_embedding(tmp_path):
    constants = {"tokens.weight": array(20, 6)}
    proto = model(
        [node("Gather", ["tokens.weight", "ids"], "y")],
        {"ids": ["batch", 4]}, ["y"], constants, kinds={"ids": TensorProto.INT64},
    )  # fmt: skip
    ids = np.random.default_rng(0).integers(0, 20, (3, 4))
    network = agree(written(proto, tmp_path), {"ids": ids})
    assert isinstance(network.get_submodule("y"), nn.Embedding)


def test_a_class_token_is_repeated_for_each_sample(tmp_path):
    constants = {"token": array(1, 1, 4), "rest": np.array([1, 4])}
    nodes = [
        node("Shape", ["x"], "s", start=0, end=1),
        node("Concat", ["s", "rest"], "shape", axis=0),
        node("Expand", ["token", "shape"], "tokens"),
        node("Concat", ["tokens", "x"], "y", axis=1),
    ]
    file = written(model(nodes, {"x": ["batch", 3, 4]}, ["y"], constants), tmp_path)
    agree(file, {"x": array(5, 3, 4)})


def test_several_inputs_and_outputs_keep_their_order(tmp_path):
    nodes = [node("Add", ["a", "b"], "s"), node("Sub", ["a", "b"], "d")]
    file = written(model(nodes, {"a": ["batch", 3], "b": ["batch", 3]}, ["d", "s"]), tmp_path)
    agree(file, {"a": array(4, 3), "b": array(4, 3, seed=1)})
    network = read_network(file)
    assert [each.name for each in network.inputs] == ["a", "b"]
    assert network.outputs == ("d", "s")


@pytest.mark.parametrize(("kind", "dtype"), [("DOUBLE", np.float64), ("FLOAT16", np.float16)])
def test_other_types_of_floats_are_kept(kind, dtype, tmp_path):
    constants = {"w": array(3, 4).astype(dtype)}
    kinds = dict.fromkeys(("x", "y"), getattr(TensorProto, kind))
    nodes = [node("MatMul", ["x", "w"], "y")]
    file = written(model(nodes, {"x": ["batch", 3]}, ["y"], constants, kinds=kinds), tmp_path)
    x = {"x": array(5, 3).astype(dtype)}
    (ours,), (theirs,) = computed(read_model(file), x), reference(file, x)
    assert ours.dtype == dtype
    np.testing.assert_allclose(ours, theirs, rtol=1e-2 if dtype == np.float16 else 1e-12)


def test_names_that_are_not_names_of_python_become_some(tmp_path):
    nodes = [
        node("Relu", ["1 in"], "a", "class"), node("Relu", ["a"], "b", "graph"),
        node("Relu", ["b"], "c", "../../x y"), node("Relu", ["c"], "d", ""),
        node("Relu", ["d"], "y", "class!"),
    ]  # fmt: skip
    file = written(model(nodes, {"1 in": ["batch", 3]}, ["y"]), tmp_path)
    network = agree(file, {"1 in": array(4, 3)})
    names = [n.target for n in network.graph.nodes if n.op == "call_module"]
    assert len(set(names)) == 5
    assert all(part.isidentifier() for name in names for part in name.split("."))


def test_names_of_inputs_hide_no_function_and_no_other_input(tmp_path):
    names = ["self", "torch", "a b", "a_b", "getattr", "input", "operator"]
    nodes = [
        node("Concat", names, "c", axis=1), node("Transpose", ["c"], "t"),
        node("Slice", ["t", "one", "two"], "s"), node("Relu", ["s"], "y", "0"),
    ]  # fmt: skip
    constants = {"one": np.array([1]), "two": np.array([9])}
    file = written(model(nodes, {n: ["batch", 2] for n in names}, ["y"], constants), tmp_path)
    agree(file, {n: array(3, 2, seed=i) for i, n in enumerate(names)})


def test_a_network_that_was_read_is_saved_and_loaded(tmp_path):
    network = read_network(written(keras(), tmp_path))
    graph = MaseGraph(network.model)
    steps = [
        "init_metadata",
        ("add_common_metadata", {"dummy_in": {"image": torch.zeros(2, 28, 28, 1)}}),
        ("quantize", {"by": "type", "linear": {"config": INTEGER}, "conv2d": {"config": INTEGER}}),
    ]
    graph = Pipeline(steps)(graph)[0]
    graph.export(tmp_path / "saved")
    x = torch.from_numpy(array(3, 28, 28, 1))
    again = MaseGraph.from_checkpoint(tmp_path / "saved")
    assert torch.equal(again.model(x), graph.model(x))


INTEGER = {"name": "integer"} | {
    f"{operand}_{key}": value
    for operand in ("data_in", "weight", "bias")
    for key, value in (("width", 8), ("frac_width", 5))
}


def test_a_constant_beside_a_layer_that_others_read_is_not_its_bias(tmp_path):
    constants = {"w": array(3, 4), "b": array(4)}
    nodes = [
        node("MatMul", ["x", "w"], "m"), node("Add", ["m", "b"], "s"), node("Mul", ["m", "s"], "y"),
    ]  # fmt: skip
    file = written(model(nodes, {"x": ["batch", 3]}, ["y"], constants), tmp_path)
    agree(file, {"x": array(5, 3)})


def test_a_gelu_of_its_parts_agrees(tmp_path):
    constants = {"root": F(2**0.5), "one": F(1), "half": F(0.5)}
    nodes = [
        node("Div", ["x", "root"], "d"), node("Erf", ["d"], "e"), node("Add", ["e", "one"], "a"),
        node("Mul", ["x", "a"], "m"), node("Mul", ["m", "half"], "y"),
    ]  # fmt: skip
    file = written(model(nodes, {"x": ["batch", 9]}, ["y"], constants), tmp_path)
    agree(file, {"x": array(5, 9)})
