"""ONNX models are built node by node, and written whole or not at all."""

import subprocess
import sys

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from chop.onnx import ModelBuilder, save_model  # noqa: E402


def scaled(weight):
    builder = ModelBuilder("scaled")
    x = builder.input("x", np.float32, ["batch", weight.shape[0]])
    y = builder.add("MatMul", x, builder.constant(weight, "fc.weight"), result="fc")
    builder.output(y, "logits", np.float32, ["batch", weight.shape[1]])
    return builder.model({"mase.accuracy": "0.7"})


def results(file, x):
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"x": x})[0]


@pytest.mark.parametrize("largest", [2**30, 1000], ids=["in the file", "beside the file"])
def test_a_saved_model_runs_and_keeps_its_names_and_facts(tmp_path, largest):
    weight = np.arange(600, dtype=np.float32).reshape(20, 30)
    file = save_model(scaled(weight), tmp_path / "deep" / "model.onnx", largest=largest)
    x = np.ones((3, 20), np.float32)
    assert np.array_equal(results(file, x), x @ weight)
    model = onnx.load(file)
    assert [i.name for i in model.graph.initializer] == ["fc.weight"]
    assert [n.name for n in model.graph.node] == ["fc", "logits"]
    assert {p.key: p.value for p in model.metadata_props} == {"mase.accuracy": "0.7"}
    assert model.producer_name == "mase"
    assert len([*file.parent.glob("*.data")]) == (largest == 1000)


def test_a_model_that_is_wrong_leaves_the_earlier_file(tmp_path):
    file = save_model(scaled(np.ones((2, 2), np.float32)), tmp_path / "model.onnx")
    before = file.read_bytes()
    builder = ModelBuilder("wrong")
    builder.output(builder.add("Relu", "nowhere"), "y", np.float32, [1])
    with pytest.raises(onnx.checker.ValidationError, match="nowhere"):
        save_model(builder.model(), file)
    assert file.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_equal_constants_are_stored_once_and_names_are_made_unique():
    builder = ModelBuilder("names")
    one, other = builder.constant(np.float32(2)), builder.constant(np.float32(2))
    assert one == other
    assert builder.constant(np.int64(2)) != one
    x = builder.input("x", np.float32, [1])
    assert builder.add("Mul", x, one, result="mul") == "mul"
    assert builder.unique("mul") == "mul_1"


def test_the_same_model_gives_the_same_bytes(tmp_path):
    weight = np.ones((2, 3), np.float32)
    files = [save_model(scaled(weight), tmp_path / name) for name in ("a.onnx", "b.onnx")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_importing_the_room_does_not_import_onnx():
    code = "import sys, chop.onnx; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
