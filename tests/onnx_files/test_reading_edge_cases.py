"""Files that mean something else in ONNX than in torch are read exactly, or refused."""

from __future__ import annotations

import numpy as np
import pytest

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
def test_whole_numbers_keep_their_type(nodes, constants, tmp_path):
    kinds = {"x": TensorProto.INT32, "y": TensorProto.INT32}
    file = written(model(nodes, {"x": ["batch", 3]}, ["y"], constants, kinds=kinds), tmp_path)
    feeds = {"x": np.array([[1, -2, 3], [4, 5, -6]], np.int32)}
    (ours,), (theirs,) = computed(read_model(file), feeds), reference(file, feeds)
    assert ours.dtype == theirs.dtype == np.int32
    assert np.array_equal(ours, theirs)


POOL = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 1, 1], "ceil_mode": 1}
HALF = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
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
