"""ONNX files that are damaged, hostile or beyond what can be read: one sentence each."""

from __future__ import annotations

import io
import os
import zipfile

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from onnx import TensorProto, helper  # noqa: E402

from chop.onnx.reading import UnreadableModel, known_operators, read_model, scan  # noqa: E402

from .networks import F, array, computed, model, reference, written  # noqa: E402


def mlp(**settings):
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="fc")]
    constants = {"w": array(4, 3), "b": array(3)}
    return model(nodes, {"x": ["batch", 4]}, ["y"], constants, **settings)


def refusal(path):
    """Return the sentence with which a file is refused."""
    with pytest.raises(UnreadableModel) as caught:
        read_model(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def zipped():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("network.onnx", mlp().SerializeToString())
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (zipped(), "is a zip archive; unpack it"),
        (b"\x1f\x8b" + bytes(30), "gzip"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"[passes.quantize]\nby = 'type'\n" * 9, "damaged, truncated or not an ONNX file"),
        (bytes(range(256)) * 10, "damaged, truncated or not an ONNX file"),
        (b"\x08\x0a", "no graph or no opset"),
    ],
    ids=["empty", "zip", "gzip", "hdf5", "toml", "bytes", "no graph"],
)
def test_a_file_of_another_kind_is_refused(content, reason, tmp_path):
    file = tmp_path / "network.onnx"
    file.write_bytes(content)
    assert reason in refusal(file)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_file_is_refused(share, tmp_path):
    whole = mlp().SerializeToString()
    file = tmp_path / "network.onnx"
    file.write_bytes(whole[: int(len(whole) * share)])
    refusal(file)


def test_a_directory_and_a_missing_file_are_refused(tmp_path):
    assert "is not a file" in refusal(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_model(tmp_path / "missing.onnx")


@pytest.mark.parametrize(("opset", "word"), [(0, "too old"), (29, "too new"), (1000, "too new")])
def test_an_opset_that_is_too_old_or_too_new_is_refused(opset, word, tmp_path):
    text = refusal(written(mlp(opset=opset), tmp_path))
    assert f"opset {opset}, which is {word}" in text
    assert "from 7 to 28" in text


def test_all_operators_that_are_not_known_are_listed_at_once(tmp_path):
    nodes = [
        helper.make_node("NonZero", ["x"], ["a"]),
        helper.make_node("Det", ["x"], ["b"]),
        helper.make_node("Det", ["x"], ["c"]),
        helper.make_node("Mine", ["x"], ["y"], domain="my.ops"),
    ]
    text = refusal(written(model(nodes, {"x": [2, 2]}, ["y"], domains={"my.ops": 1}), tmp_path))
    assert "the operators Det (2), NonZero (1), my.ops.Mine (1), which cannot be read" in text
    assert "NonZero" not in known_operators()


def external(tmp_path, location, *, offset=None, length=None):
    """Write a model whose weight lies in another file."""
    proto = mlp()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    file = tmp_path / "model" / "network.onnx"
    file.parent.mkdir()
    file.write_bytes(proto.SerializeToString())
    return file


def test_external_data_beside_the_model_are_read(tmp_path):
    file = external(tmp_path, "network.data", offset=8, length=48)
    (file.parent / "network.data").write_bytes(bytes(8) + array(4, 3).tobytes())
    x = {"x": array(5, 4)}
    (ours,), (theirs,) = computed(read_model(file), x), reference(file, x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/passwd", "", ".", "a/../../secret", "link", "a\0b"]
)
def test_external_data_outside_the_directory_are_never_read(location, tmp_path):
    (tmp_path / "secret").write_bytes(array(4, 3).tobytes())
    file = external(tmp_path, location)
    os.symlink(tmp_path / "secret", file.parent / "link")
    assert "outside the directory of the model" in refusal(file)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"location": "other.data"}, "is missing beside the model"),
        ({"length": 10}, "refers to 10 bytes"),
        ({"offset": -8}, "bytes at -8"),
        ({"offset": "much"}, "not a number"),
        ({"offset": 10**15}, "beyond the end"),
        ({"offset": 8}, "beyond the end"),
    ],
    ids=str,
)
def test_external_data_that_are_missing_or_misplaced_are_refused(settings, reason, tmp_path):
    file = external(tmp_path, **{"location": "network.data", **settings})
    (file.parent / "network.data").write_bytes(bytes(48))
    assert reason in refusal(file)


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        ([4, 4], "has 48 bytes, but its shape [4, 4] needs 64"),
        ([2**40, 2**40], "needs"),
        ([-1, 3], "negative size"),
    ],
    ids=str,
)
def test_a_tensor_whose_size_disagrees_with_its_bytes_is_refused(dims, reason, tmp_path):
    proto = mlp()
    proto.graph.initializer[0].dims[:] = dims
    assert reason in refusal(written(proto, tmp_path))


def test_a_small_file_of_very_many_parts_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx, "ModelProto", None)  # it is not parsed
    empty_nodes = b"\x0a\x00" * (scan.MAX_PARTS + 1)
    size = len(empty_nodes)
    head = b"\x3a" + bytes(
        [size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21]
    )
    file = tmp_path / "network.onnx"
    file.write_bytes(head + empty_nodes)
    assert "more than 2,000,000 parts" in refusal(file)


def test_graphs_nested_very_deep_are_refused(tmp_path):
    inner = b""
    for _ in range(5000):  # an attribute of a node that holds a graph
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            inner = tag + _length(inner) + inner
    file = tmp_path / "network.onnx"
    file.write_bytes(b"\x3a" + _length(inner) + inner)
    assert "nested more than" in refusal(file)


def _length(content):
    size, out = len(content), []
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes([*out, size])


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([helper.make_node("Gemm", ["x", "v"], ["y"], name="n")], "does not fit its inputs"),
        ([helper.make_node("Add", ["x", "nothing"], ["y"], name="n")], "nothing"),
        ([helper.make_node("Softmax", ["x"], ["y"], name="n", axis=7)], "has the axis 7"),
        (
            [
                helper.make_node("Constant", [], ["s"], value_ints=[5, 7]),
                helper.make_node("Reshape", ["x", "s"], ["y"], name="n"),
            ],
            "reshapes",
        ),
        ([helper.make_node("Conv", ["x", "v"], ["y"], name="n")], "dimensions"),
        (
            [helper.make_node("MaxPool", ["x"], ["y"], name="n", kernel_shape=[2])],
            "only such pools",
        ),
        ([helper.make_node("Cast", ["x"], ["y"], name="n", to=8)], "of type STRING"),
        ([helper.make_node("Transpose", ["x"], ["y"], name="n", perm=[0, 0])], "order"),
    ],
    ids=["gemm", "missing", "softmax", "reshape", "conv", "pool", "cast", "transpose"],
)
def test_shapes_that_do_not_fit_are_refused_by_the_name_of_the_node(nodes, reason, tmp_path):
    used = {name for each in nodes for name in each.input}
    constants = {"v": array(7, 3)} if "v" in used else {}
    file = written(model(nodes, {"x": ["batch", 4]}, ["y"], constants), tmp_path)
    assert reason in refusal(file)


def test_a_network_in_training_mode_is_refused(tmp_path):
    constants = {"s": array(4), "b": array(4), "m": array(4), "v": np.abs(array(4))}
    node = helper.make_node(
        "BatchNormalization", ["x", *constants], ["y"], name="bn", training_mode=1
    )
    file = written(model([node], {"x": ["batch", 4]}, ["y"], constants, opset=15), tmp_path)
    assert "node 'bn' (BatchNormalization) is in training mode" in refusal(file)


def test_sparse_weights_and_text_are_refused(tmp_path):
    proto = mlp()
    proto.graph.initializer[0].CopyFrom(helper.make_tensor("w", TensorProto.STRING, [1], [b"a"]))
    assert "type STRING" in refusal(written(proto, tmp_path))


def test_weights_that_are_not_finite_are_read_and_left_to_the_caller(tmp_path):
    proto = mlp()
    proto.graph.initializer[0].raw_data = np.full((4, 3), np.nan, F).tobytes()
    assert read_model(written(proto, tmp_path)).fc.weight.isnan().all()


HUGE = 2**40


def computing(op, constants, attributes=None, *, kind=TensorProto.FLOAT, **settings):
    """Return a network that adds to its input what a node makes of constants alone."""
    nodes = [
        helper.make_node(op, list(constants), ["c"], name="large", **(attributes or {})),
        helper.make_node("ReduceSum", ["c"], ["s"], name="sum"),
        helper.make_node("Add", ["x", "s"], ["y"], name="add"),
    ]
    return model(nodes, {"x": ["batch", 4]}, ["y"], constants, kinds={"x": kind}, **settings)


LARGE = {
    "Expand": computing("Expand", {"a": F(1.0), "to": np.array([HUGE])}),
    "several": computing("Expand", {"a": F(1.0), "to": np.array([2**20, 2**20])}),
    "ConstantOfShape": computing("ConstantOfShape", {"to": np.array([HUGE])}),
    "Tile": computing("Tile", {"a": np.ones(1, F), "to": np.array([HUGE])}),
    "Range": computing("Range", {"a": F(0.0), "b": F(HUGE), "c0": F(1.0)}),
    "Pad": computing("Pad", {"a": np.ones(1, F), "to": np.array([0, HUGE])}),
    "Resize": computing(
        "Resize",
        {"a": np.ones((1, 1, 1), F), "roi": np.zeros(0, F), "by": np.array([1, 1, HUGE], F)},
        {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        },
    ),
    "Einsum": computing(
        "Einsum", {"a": np.ones(2**16, F), "b": np.ones((2**16), F)}, {"equation": "i,j->ij"}
    ),
    "DequantizeLinear": computing(
        "DequantizeLinear",
        {"a": np.ones(2, np.int8), "scale": np.ones(2, F)},
        {"block_size": HUGE, "axis": 0},
    ),
    "MatMul": computing("MatMul", {"a": np.ones((2**16, 1), F), "b": np.ones((1, 2**16), F)}),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_small_file_cannot_ask_for_huge_constants(name, tmp_path):
    file = written(LARGE[name], tmp_path)
    assert file.stat().st_size < 2**20
    assert "large" in refusal(file)  # the node that is to blame


def test_many_nodes_cannot_ask_for_huge_constants_together(tmp_path):
    to = np.array([2**27])
    nodes = [
        helper.make_node("Expand", ["x0", "to"], [f"c{place}"], name=f"large_{place}")
        for place in range(20)
    ]
    nodes += [helper.make_node("Sum", ["x", *(f"c{i}" for i in range(20))], ["y"], name="sum")]
    proto = model(nodes, {"x": ["batch", 4]}, ["y"], {"x0": F(1.0), "to": to})
    assert "is one of many nodes that compute large constants" in refusal(written(proto, tmp_path))


def test_results_that_cannot_be_computed_are_refused(tmp_path):
    nodes = [
        helper.make_node("Expand", ["x", "to"], ["large"], name="large"),
        helper.make_node("ReduceSum", ["large"], ["y"], name="sum"),
    ]
    constants = {"to": np.array([HUGE, 1, 1])}
    proto = model(nodes, {"x": ["batch", 4]}, ["y"], constants)
    assert "numbers; only" in refusal(written(proto, tmp_path))
    proto = model(nodes[1:], {"large": ["batch", HUGE]}, ["y"])
    assert "too large to be computed" in refusal(written(proto, tmp_path))


def nested(depth):
    """Return a branch with an If in an If …, whose other branches are an Abs each."""
    name = f"r{depth}"
    result = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    if depth == 0:
        node = helper.make_node("Neg", ["x"], [name])
    else:
        output = helper.make_tensor_value_info(f"s{depth}", TensorProto.FLOAT, None)
        other = helper.make_node("Abs", ["x"], [f"s{depth}"])
        small = helper.make_graph([other], f"small{depth}", [], [output])
        branches = {"then_branch": nested(depth - 1), "else_branch": small}
        node = helper.make_node("If", ["c"], [name], **branches)
    return helper.make_graph([node], f"graph{depth}", [], [result])


def test_branches_in_branches_are_read(tmp_path):
    constants = {"c": np.array(True)}
    proto = model(list(nested(15).node), {"x": ["batch", 4]}, ["r15"], constants)
    file = written(proto, tmp_path)
    x = {"x": array(3, 4)}
    assert np.array_equal(computed(read_model(file), x)[0], -x["x"])
