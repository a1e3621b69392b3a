"""Files that mean something else in ONNX than in torch are read exactly, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from onnx import TensorProto, helper  # noqa: E402

from chop.onnx.reading import read_model  # noqa: E402
from chop.onnx.reading.errors import UnreadableModel  # noqa: E402

from .networks import F, array, computed, model, reference, written  # noqa: E402

node = helper.make_node
ONE, TWO = np.array([1]), np.array([2])
SHAPE = node("Shape", ["x"], ["s"], end=1)
TIMES = [node("Cast", ["n"], ["f"], to=TensorProto.FLOAT), node("Mul", ["x", "f"], ["y"])]


def sliced(start, end, step=1):
    constants = {"s": start, "e": end, "a": 0, "t": step}
    nodes = [node("Slice", ["x", *constants], ["y"])]
    return nodes, {name: np.array([value]) for name, value in constants.items()}


EXACT = {
    "first three of the batch": sliced(0, 3),
    "third of the batch on": sliced(2, 2**40),
    "last of the batch": sliced(-3, -1),
    "batch backwards": sliced(-1, -(2**40), -1),
    "softplus of large numbers": (
        [node("Mul", ["x", "c"], ["m"]), node("Softplus", ["m"], ["y"])],
        {"c": F(60)},
    ),
    "no reduction": ([node("ReduceSumSquare", ["x"], ["y"], noop_with_empty_axes=1)], {}),
    "quotient of a fixed size": (
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "one"], ["n"]),
            node("Div", ["n", "two"], ["half"]),
            node("Concat", ["rest", "half", "two"], ["shape"], axis=0),
            node("Reshape", ["x", "shape"], ["y"]),
        ],
        {"one": ONE, "two": TWO, "rest": -ONE},
    ),
    "clipped codes of a weight": (
        [
            node("QuantizeLinear", ["w", "scale", "zero"], ["q"]),
            node("Clip", ["q", "low", "high"], ["c"]),
            node("DequantizeLinear", ["c", "scale", "zero"], ["d"]),
            node("MatMul", ["x", "d"], ["y"]),
        ],
        {
            "w": array(6, 3, scale=3),
            "scale": F(0.125),
            "zero": np.int8(0),
            "low": np.int8(-7),
            "high": np.int8(7),
        },
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_edge_cases_give_what_onnxruntime_gives(name, tmp_path):
    nodes, constants = EXACT[name]
    constants = {key: np.asarray(value) for key, value in constants.items()}
    file = written(model(nodes, {"x": ["batch", 6]}, ["y"], constants), tmp_path)
    network = read_model(file)
    for batch in (1, 2, 5, 20):
        feeds = {"x": array(batch, 6, scale=2)}
        for ours, theirs in zip(computed(network, feeds), reference(file, feeds), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("ReduceSum", ["x", "one"], ["y"])], {"one": ONE}),
        ([node("ReduceProd", ["x", "one"], ["y"])], {"one": ONE}),
        ([node("CumSum", ["x", "one"], ["y"])], {"one": ONE}),
        ([node("Pow", ["x", "e"], ["y"])], {"e": np.array(2.0, F)}),
    ],
    ids=lambda value: value[0].op_type if isinstance(value, list) else "",
)
def test_integers_keep_their_type(nodes, constants, tmp_path):
    kinds = {"x": TensorProto.INT32, "y": TensorProto.INT32}
    file = written(model(nodes, {"x": ["batch", 3]}, ["y"], constants, kinds=kinds), tmp_path)
    feeds = {"x": np.array([[1, -2, 3], [4, 5, -6]], np.int32)}
    (ours,), (theirs,) = computed(read_model(file), feeds), reference(file, feeds)
    assert ours.dtype == theirs.dtype == np.int32
    assert np.array_equal(ours, theirs)


POOL = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 1, 1], "ceil_mode": 1}
HALF = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
CORNERS = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
RATIO = {"mode": "linear", "keep_aspect_ratio_policy": "not_larger"}
REFUSED = {
    "half of the batch": (
        [SHAPE, node("Div", ["s", "c"], ["n"]), node("Slice", ["x", "z", "n"], ["y"])],
        {"c": TWO, "z": np.array([0])},
        "depend on sizes",
    ),
    "at most 2": ([SHAPE, node("Min", ["s", "c"], ["n"]), *TIMES], {"c": TWO}, "for other sizes"),
    "rest of 7": ([SHAPE, node("Mod", ["s", "c"], ["n"]), *TIMES], {"c": 7 * ONE}, "other sizes"),
    "backwards from 3": (*sliced(3, 0, -1), "goes back over a part"),
    "uneven pads": ([node("MaxPool", ["x"], ["y"], **POOL)], {}, "ceil_mode with uneven padding"),
    "aligned corners of 2.4 numbers": (
        [node("Resize", ["x", "", "c"], ["y"], **CORNERS)],
        {"c": np.array([1, 1, 0.6, 0.6], F)},
        "aligns the corners of a size that is not an integer",
    ),
    "whole weights": (
        [node("Cast", ["x"], ["i"], to=TensorProto.INT32), node("Conv", ["i", "c"], ["y"])],
        {"c": np.ones((2, 3, 1, 1), np.int32)},
        "has weights of type int32",
    ),
    "norm of other sizes": (
        [node("LayerNormalization", ["x", "c"], ["y"])],
        {"c": np.ones(3, F)},
        "has weights of shape",
    ),
    "recurrent weights of two dimensions": (
        [node("Reshape", ["x", "s"], ["r"]), node("LSTM", ["r", "w", "w"], ["y"])],
        {"s": np.array([8, -1, 3]), "w": np.ones((4, 3), F)},
        "has weights that are not of three dimensions",
    ),
    "recurrent weights of other sizes": (
        [node("Reshape", ["x", "s"], ["r"]), node("LSTM", ["r", "w", "v"], ["y"])],
        {"s": np.array([8, -1, 3]), "w": np.ones((1, 8, 3), F), "v": np.ones((1, 8, 3), F)},
        "which do not fit",
    ),
    "ratio": (
        [node("Resize", ["x", "", "", "c"], ["y"], **RATIO)],
        {"c": np.array([2, 3, 16, 20])},
        "keeps the ratio of the sizes",
    ),
    "size of 1": (
        [node("Resize", ["x", "", "", "c"], ["y"], **HALF)],
        {"c": np.array([2, 3, 16, 1])},
        "size of 1 by pytorch_half_pixel",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_torch_computes_otherwise_are_refused(name, tmp_path):
    nodes, constants, reason = REFUSED[name]
    file = written(model(nodes, {"x": ["batch", 3, 8, 8]}, ["y"], constants), tmp_path)
    with pytest.raises(UnreadableModel, match=reason):
        read_model(file)


@pytest.mark.parametrize("largest", [0, 1])
def test_of_equal_numbers_the_first_places_are_chosen(largest, tmp_path):
    top = node("TopK", ["x", "k"], ["values", "y"], largest=largest)
    last = node("ArgMax", ["x"], ["z"], axis=1, select_last_index=1)
    kinds = {"y": TensorProto.INT64, "z": TensorProto.INT64}
    proto = model([top, last], {"x": ["batch", 40]}, ["y", "z"], {"k": np.array([9])}, kinds=kinds)
    x = np.random.default_rng(0).integers(0, 3, (20, 40)).astype(F)
    ours, last_places = computed(read_model(written(proto, tmp_path)), {"x": x})
    order = np.argsort(-x if largest else x, axis=1, kind="stable")[:, :9]
    assert np.array_equal(ours, order)
    assert np.array_equal(last_places[:, 0], 39 - np.argmax(x[:, ::-1], 1))


@pytest.mark.parametrize("name", ["INT4", "UINT4", "INT2", "UINT2"])
def test_casts_to_types_of_few_bits_wrap(name, tmp_path):
    kind, bits = TensorProto.DataType.Value(name), int(name[-1])
    nodes = [node("Cast", ["x"], ["c"], to=kind), node("Cast", ["c"], ["y"], to=TensorProto.FLOAT)]
    network = read_model(written(model(nodes, {"x": ["batch", 41]}, ["y"]), tmp_path))
    x = np.arange(-20, 21, dtype=F)[None]
    low = -(2 ** (bits - 1)) if name.startswith("I") else 0
    assert np.array_equal(computed(network, {"x": x})[0], (x - low) % 2**bits + low)


WHOLE = {
    "Sub": np.subtract,
    "Add": np.add,
    "Mul": np.multiply,
    "Div": lambda x, c: np.trunc(x / c),
    "Min": np.minimum,
    "BitwiseNot": np.invert,
    "Neg": np.negative,
}


@pytest.mark.parametrize("op", WHOLE)
@pytest.mark.parametrize("kind", [np.uint16, np.int16, np.uint32])
def test_integers_wrap_in_the_type_of_the_file(op, kind, tmp_path):
    if op == "Neg" and kind is not np.int16:
        return  # which ONNX does not define
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    inputs = ["x"] if op in ("BitwiseNot", "Neg") else ["x", "c"]
    constants = {"c": np.array([40000, 3, 9, 50000]).astype(kind)} if len(inputs) > 1 else {}
    proto = model([node(op, inputs, ["y"])], {"x": ["batch", 4]}, ["y"], constants,
                  kinds={"x": code, "y": code})  # fmt: skip
    x = np.array([[2**32 - 1, 0, 40000, 7]]).astype(kind)
    wanted = WHOLE[op](x, *constants.values()).astype(np.int64)
    network = read_model(written(proto, tmp_path))
    for seen in {kind, {np.uint16: np.int32, np.uint32: np.int64}.get(kind, kind)}:
        (result,) = computed(network, {"x": x.astype(seen)})
        assert np.array_equal(result.astype(np.int64), wanted)


def test_places_may_be_counted_from_the_end(tmp_path):
    places = {"p": np.array([[-1, 0, -6], [2, -3, 5]])}
    proto = model([node("GatherElements", ["x", "p"], ["y"], axis=1)], {"x": [2, 6]}, ["y"], places)
    file = written(proto, tmp_path)
    x = {"x": array(2, 6)}
    assert np.array_equal(computed(read_model(file), x)[0], reference(file, x)[0])


LOWEST = np.finfo(F).min


@pytest.mark.parametrize("bound", [LOWEST, -np.inf])
def test_the_largest_of_a_number_and_a_mask_is_no_longer_infinite(bound, tmp_path):
    constants = {"low": F(bound)}
    file = written(
        model([node("Max", ["x", "low"], ["y"])], {"x": [2, 2]}, ["y"], constants), tmp_path
    )
    x = np.array([[-np.inf, np.nan], [LOWEST, 1]], F)
    (ours,), (theirs,) = computed(read_model(file), {"x": x}), reference(file, {"x": x})
    assert np.array_equal(ours, theirs, equal_nan=True)


def test_a_bound_that_rounding_hides_is_left_out_for_what_rounds_only(tmp_path):
    constants = {"low": F(LOWEST), "scale": F(0.1), "zero": np.int8(1)}
    nodes = [
        node("Max", ["x", "low"], ["m"]),
        node("QuantizeLinear", ["m", "scale", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        node("Neg", ["d"], ["y"]),
        node("Neg", ["m"], ["z"]),
    ]
    x = np.array([[-np.inf, 3], [LOWEST, 1]], F)
    for outputs, num_bounds in ((["y"], 0), (["y", "z"], 1)):
        file = written(model(nodes, {"x": [2, 2]}, outputs, constants), tmp_path)
        network = read_model(file)
        assert sum(each.target is torch.clamp_min for each in network.graph.nodes) == num_bounds
        assert not [*network.buffers()]
    assert np.array_equal(computed(network, {"x": x})[1], reference(file, {"x": x})[1])


NONE = [
    ("ReduceMax", F, -np.inf),
    ("ReduceMin", F, np.inf),
    ("ReduceMax", np.int32, -(2**31)),
    ("ReduceMin", np.int32, 2**31 - 1),
]


@pytest.mark.parametrize(("op", "kind", "wanted"), NONE)
def test_the_largest_of_no_numbers_is_the_lowest_one(op, kind, wanted, tmp_path):
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [node(op, ["x", "axes"], ["y"], keepdims=0)]
    proto = model(nodes, {"x": ["batch", 0]}, ["y"], {"axes": ONE}, kinds={"x": code, "y": code})
    network = read_model(written(proto, tmp_path))
    for batch in (1, 3):
        (result,) = computed(network, {"x": np.zeros((batch, 0), kind)})
        assert result.tolist() == [wanted] * batch


def test_a_function_of_onnx_is_read_by_its_body(tmp_path):
    """Attention has no reader of its own; unused results are not computed."""
    shape = ["batch", 2, 5, 4]
    inputs = dict.fromkeys(("q", "k", "v"), shape)
    attention = node("Attention", list(inputs), ["y", "", ""], name="attend", is_causal=1)
    file = written(model([attention], inputs, ["y"], opset=23), tmp_path)
    feeds = {name: array(3, 2, 5, 4, seed=place) for place, name in enumerate(inputs)}
    network = read_model(file)
    assert any(each.name.startswith("attend") for each in network.graph.nodes)
    ours, theirs = computed(network, feeds)[0], reference(file, feeds)[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def branches(condition):
    """Return a network that adds or subtracts by a condition."""
    graphs = [
        helper.make_graph(
            [node(op, ["x", "two"], [f"{op}_result"], name=op)],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_result", TensorProto.FLOAT, None)],
        )
        for op in ("Add", "Sub")
    ]
    choose = node("If", ["c"], ["y"], name="choose", then_branch=graphs[0], else_branch=graphs[1])
    nodes, constants = condition
    return model([*nodes, choose], {"x": ["batch", 3]}, ["y"], {**constants, "two": F(2)})


def test_the_branch_that_a_constant_chooses_is_read(tmp_path):
    x = {"x": array(4, 3)}
    for chosen in (True, False):
        file = written(branches(([], {"c": np.array(chosen)})), tmp_path)
        assert np.array_equal(computed(read_model(file), x)[0], reference(file, x)[0])


def test_a_branch_that_a_free_size_chooses_is_refused(tmp_path):
    nodes = [SHAPE, node("Equal", ["s", "one"], ["c"])]
    with pytest.raises(UnreadableModel, match="chooses its branch while it runs"):
        read_model(written(branches((nodes, {"one": ONE})), tmp_path))


def test_files_of_old_opsets_are_converted(tmp_path):
    nodes = [
        node("Add", ["x", "c"], ["a"], name="add", broadcast=1),
        node("Dropout", ["a"], ["d", "mask"], name="drop", is_test=1),
        node("Reshape", ["d"], ["y"], name="flat", shape=[0, -1]),
    ]
    constants = {"c": array(4)}
    for opset, end in ((6, 2), (4, 3)):
        proto = model(nodes[:end], {"x": [2, 3, 4]}, ["dy"[end - 2]], constants, opset=opset)
        network = read_model(written(proto, tmp_path))
        x = array(2, 3, 4)
        wanted = x + array(4)
        wanted = wanted.reshape(2, -1) if end == 3 else wanted
        np.testing.assert_allclose(computed(network, {"x": x})[0], wanted, rtol=1e-6)


LONG = "StatefulPartitionedCall/" + "/".join(f"functional_{i}/very_long_block" for i in range(12))


def test_long_names_are_shortened_and_kept_beside_the_network(tmp_path):
    nodes = [
        node("Gemm", ["x" * 300, "w1"], ["a"], name=f"{LONG}/dense_1/MatMul"),
        node("Relu", ["a"], ["b"], name=f"{LONG}/dense_1/Relu"),
        node("Gemm", ["b", "w2"], ["c"], name=f"{LONG}/dense_1/MatMul;{LONG}/{'z' * 200}"),
        node("Exp", ["c"], ["y"], name=f"{LONG}/exp"),
    ]
    constants = {"w1": array(4, 3), "w2": array(3, 3)}
    file = written(model(nodes, {"x" * 300: ["batch", 4]}, ["y"], constants), tmp_path)
    network = read_model(file)
    names = [each.name for each in network.graph.nodes]
    assert max(map(len, [*names, *dict(network.named_modules())])) <= 40
    assert len(set(names)) == len(names) == 6
    assert any(name.endswith("dense_1") or "dense_1" in name for name in names)
    originals = network.meta["onnx_names"]
    assert all(len(long) > 40 for long in originals.values())
    assert any("functional_0" in long for long in originals.values())


@pytest.mark.parametrize("name", ["training", "a.forward", "fc.training.x", "graph.code", "a.half"])
def test_weights_may_be_called_as_attributes_of_layers_are(name, tmp_path):
    nodes = [node("Gemm", ["x", f"{name}.weight"], ["y"], name="fc")]
    file = written(
        model(nodes, {"x": ["batch", 4]}, ["y"], {f"{name}.weight": array(4, 3)}), tmp_path
    )
    x = {"x": array(5, 4)}
    network = read_model(file)
    network.train().eval()
    np.testing.assert_allclose(computed(network, x)[0], reference(file, x)[0], rtol=1e-5, atol=1e-6)


def test_a_free_size_that_is_given_is_fixed(tmp_path):
    nodes = [node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2), node("Neg", ["a"], ["y"])]
    file = written(model(nodes, {"x": ["batch", "time", 3]}, ["y"]), tmp_path)
    with pytest.raises(UnreadableModel, match=r"size is free; give it with --size NAME=N"):
        read_model(file)
    x = {"x": array(4, 7, 3)}
    network = read_model(file, sizes={"time": 7})
    np.testing.assert_allclose(computed(network, x)[0], reference(file, x)[0], atol=1e-4)
    with pytest.raises(
        UnreadableModel, match="no free size 'tim'; its free sizes are: batch, time"
    ):
        read_model(file, sizes={"tim": 7})
    with pytest.raises(UnreadableModel, match="must be at least 1, not 0"):
        read_model(file, sizes={"time": 0})


def test_a_state_of_one_sample_beside_a_free_batch_fixes_the_batch(tmp_path):
    constants = {"w": array(1, 32, 4), "r": array(1, 32, 8)}
    nodes = [node("LSTM", ["x", "w", "r", "", "", "h", "c"], ["y", "", ""], hidden_size=8)]
    shapes = {"x": ["time", "batch", 4], "h": [1, 1, 8], "c": [1, 1, 8]}
    file = written(model(nodes, shapes, ["y"], constants), tmp_path)
    feeds = {"x": array(6, 1, 4), "h": array(1, 1, 8), "c": array(1, 1, 8)}
    ours, theirs = computed(read_model(file), feeds)[0], reference(file, feeds)[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
