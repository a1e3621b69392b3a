"""`ch` with an .onnx file as the model: test, transform, search, train and emit."""

import json
import re

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from onnx import TensorProto, helper  # noqa: E402

from chop.onnx import ModelBuilder, save_model  # noqa: E402
from tests.onnx_files.networks import F, array, model, reference, written  # noqa: E402
from tests.onnx_files.test_reading_networks import keras, pytorch  # noqa: E402

QUANTIZE = """
[passes.quantize]
by = "type"
{op}.config = {{ name = "integer", data_in_width = 8, data_in_frac_width = 4, \
weight_width = 6, weight_frac_width = 5, bias_width = 8, bias_frac_width = 5 }}
linear.config = {{ name = "integer", data_in_width = 8, data_in_frac_width = 4, \
weight_width = 6, weight_frac_width = 5, bias_width = 8, bias_frac_width = 5 }}
"""
SEARCH = """
[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
setup.by = "name"
seed.default.config.name = ["NA"]
seed.{layer}.config = {{ name = ["integer"], data_in_width = [4, 8], \
data_in_frac_width = ["NA"], weight_width = [3, 4, 8], weight_frac_width = ["NA"], \
bias_width = [8], bias_frac_width = [4] }}
[search.strategy]
sw_runner.basic_evaluation.num_samples = 64
hw_runner.average_bitwidth = {{}}
metrics.accuracy = {{}}
metrics.average_bitwidth = {{}}
setup.n_trials = 5
"""


@pytest.fixture
def jets(tmp_path):
    """An MLP for jets, and the words of a command on it."""
    file = written(pytorch(), tmp_path, "mlp.onnx")
    return file, [file, "jsc-sim", "--no-progress"]


@pytest.fixture
def images(tmp_path):
    """A network with its channels last, and data with their channels first."""
    x, proto = array(120, 1, 28, 28), keras()
    file = written(proto, tmp_path, "keras.onnx")
    (scores,) = reference(file, {"image": np.moveaxis(x, 1, 3)})
    # every class is the largest of some image
    (bias,) = (tensor for tensor in proto.graph.initializer if tensor.name == "b")
    bias.raw_data = (array(5) - scores.mean(0)).tobytes()
    file = written(proto, tmp_path, "keras.onnx")
    (scores,) = reference(file, {"image": np.moveaxis(x, 1, 3)})
    np.savez(tmp_path / "images.npz", x=x, y=scores.argmax(1))
    words = ["npz", "--data-path", tmp_path / "images.npz", "--cpu", 0, "--no-progress"]
    return file, [file, *words]


def accuracy(err):
    return float(re.search(r"test_acc_epoch *\| *([\d.]+)", err)[1])


def test_a_network_with_its_channels_last_is_tested_on_images_with_theirs_first(images, ch):
    for options in ((), ("--runtime", "onnxruntime")):
        err = ch("test", *images[1], *options).stderr
        assert "takes images with their channels last; those of npz are turned" in err
        assert accuracy(err) == 1  # the labels are its own


def test_the_file_may_be_given_with_load(images, ch):
    file, (_, *rest) = images
    assert accuracy(ch("test", "onnx", *rest, "--load", file).stderr) == 1


def test_the_project_is_called_after_the_file(jets, ch, tmp_path):
    ch("test", *jets[1])
    (project,) = (tmp_path / "out").iterdir()
    assert project.name.startswith("mlp_classification_jsc-sim_")


def test_a_network_is_trained_further_and_tested(jets, ch, tmp_path):
    err = ch("train", *jets[1], "--max-steps", 20, "--project", "p", "--learning-rate", 1e-2).stderr
    assert "Training is completed" in err
    best = tmp_path / "out" / "p" / "software" / "training_ckpts" / "best.ckpt"
    assert accuracy(ch("test", *jets[1], "--load", best, "--load-type", "pl").stderr) > 0


def test_a_network_is_quantised_tested_again_and_searched(jets, ch, tmp_path):
    (tmp_path / "q.toml").write_text(QUANTIZE.format(op="conv2d"))
    err = ch("transform", *jets[1], "--config", tmp_path / "q.toml", "--project", "p").stderr
    assert re.search(r"Linear +\| linear +\| +2 \| +2 \|", err)
    saved = tmp_path / "out" / "p" / "software" / "transform" / "transformed_ckpt"
    ch("test", *jets[1], "--load", saved)
    (tmp_path / "s.toml").write_text(SEARCH.format(layer="layers_2"))
    err = ch("search", *jets[1], "--config", tmp_path / "s.toml", "--project", "p").stderr
    assert "Searching is completed" in err
    record = json.loads((saved.parents[1] / "search_ckpts" / "search.json").read_text())
    assert len(record["trials"]) == 5


@pytest.mark.rtl
@pytest.mark.parametrize("kind", ["images", "jets"])
def test_from_a_file_to_a_circuit_that_equals_the_network(kind, ch, tmp_path, request):
    _, words = request.getfixturevalue(kind)
    (tmp_path / "q.toml").write_text(QUANTIZE.format(op="conv2d"))
    ch("transform", *words, "--config", tmp_path / "q.toml", "--project", "p")
    layer = {"images": "sequential_dense", "jets": "layers_2"}[kind]
    (tmp_path / "s.toml").write_text(SEARCH.format(layer=layer))
    ch("search", *words, "--config", tmp_path / "s.toml", "--project", "p")
    saved = tmp_path / "out" / "p" / "software" / "transform" / "transformed_ckpt"
    backend = ["--backend", "streaming"] if kind == "images" else []
    ch("emit", *words, "--load", saved, *backend)
    err = ch("simulate", *words, "--load", saved, "--max-samples", 20).stderr
    assert re.search(r"Mismatches +0\n", err), err


def quantised_mlp(tmp_path, name="fc"):
    """Write a network of one layer with Q/DQ pairs."""
    builder = ModelBuilder("quantised")
    x = builder.input("x", np.float32, ["batch", 16])
    pair = [builder.constant(F(2**-4)), builder.constant(np.int8(0))]
    weight = [builder.constant(F(2**-5)), builder.constant(np.int8(0))]
    x = builder.add("DequantizeLinear", builder.add("QuantizeLinear", x, *pair), *pair)
    codes = np.random.default_rng(0).integers(-30, 30, (5, 16)).astype(np.int8)
    w = builder.add("DequantizeLinear", builder.constant(codes, f"{name}.weight"), *weight)
    y = builder.add("Gemm", x, w, transB=1, result=name)
    builder.output(y, "y", np.float32, ["batch", 5])
    return save_model(builder.model(), tmp_path / "quantised.onnx")


def test_a_quantised_file_is_tested_and_emitted_as_it_is(ch, tmp_path):
    file = quantised_mlp(tmp_path)
    x = array(100, 16, scale=2)
    (scores,) = reference(file, {"x": x})
    np.savez(tmp_path / "rows.npz", x=x, y=scores.argmax(1))
    words = [file, "npz", "--data-path", tmp_path / "rows.npz", "--cpu", 0, "--standardize", "off"]
    err = ch("test", *words).stderr
    assert "Quantising 1 nodes as the ONNX file does" in err
    assert accuracy(err) == 1
    err = ch("emit", *words, "--project", "c").stderr
    (command,) = re.findall(r"Simulate it with: (.*)", err)
    assert "--load" not in command
    assert "--project c" in command
    assert re.search(r"data_in_0 +16 codes, signed 8-bit", err)


def test_a_network_with_the_long_names_of_a_converter_is_emitted(ch, tmp_path):
    name = ";".join(f"StatefulPartitionedCall/model_{i}/../../dense/MatMul" for i in range(12))
    file = quantised_mlp(tmp_path, name)
    np.savez(tmp_path / "rows.npz", x=array(100, 16), y=np.arange(100) % 5)
    words = [file, "npz", "--data-path", tmp_path / "rows.npz", "--cpu", 0, "--standardize", "off"]
    ch("emit", *words, "--project", "c")
    made = [path for path in (tmp_path / "out" / "c").rglob("*") if path.is_file()]
    assert any(path.suffix == ".sv" for path in made)
    assert all(len(path.name) < 80 for path in made)


def test_files_that_do_not_fit_are_refused_in_one_sentence(jets, images, here, tmp_path):
    file = jets[0]
    nan = pytorch()
    nan.graph.initializer[0].raw_data = np.full((32, 16), np.nan, F).tobytes()
    fixed = model(
        [helper.make_node("MatMul", ["w", "x"], ["y"])], {"x": [3, 16]}, ["y"], {"w": array(3, 3)}
    )
    text = pytorch()
    text.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    cases = {
        ("jsc-s", "jsc-sim", "--load", file): (2, "is a whole network and not weights of 'jsc-s'"),
        ("onnx", "jsc-sim"): (2, "needs the file of the network; give it with --load FILE.onnx"),
        (tmp_path / "no.onnx", "jsc-sim"): (2, "MODEL: there is no file"),
        (file, "mnist"): (
            2,
            "takes samples of shape 16, but those of data set 'mnist' have 1 x 28",
        ),
        (written(nan, tmp_path, "nan.onnx"), "jsc-sim"): (1, "NaN or infinite"),
        (written(fixed, tmp_path, "fixed.onnx"), "jsc-sim"): (2, "accepts batches of 3 only"),
        (written(text, tmp_path, "text.onnx"), "jsc-sim"): (2, "numbers of type STRING"),
        (images[0], "mnist"): (2, "has 5 outputs, but data set 'mnist' has 10 classes"),
    }
    for words, (code, reason) in cases.items():
        done = here("test", *words, "--project-dir", tmp_path / "out")
        assert done[0] == code, done
        last = done[2].rstrip().splitlines()[-1]
        assert last.startswith("ch: ")
        assert reason in last, last


def test_a_free_size_is_given_on_the_command_line_or_in_a_file(ch, here, tmp_path):
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], name="split", axis=1, num_outputs=2),
        helper.make_node("MatMul", ["a", "k"], ["y"], name="fc"),
    ]
    constants = {"k": array(8, 5)}
    file = written(model(nodes, {"x": ["batch", "features"]}, ["y"], constants), tmp_path)
    out = ["--project-dir", tmp_path / "out"]
    code, _, err = here("test", file, "jsc-sim", *out)
    assert code == 2
    assert "size is free; give it with --size NAME=N" in err
    ch("test", file, "jsc-sim", "--size", "features=16")
    (tmp_path / "own.toml").write_text('size = ["features=16"]\n')
    ch("test", file, "jsc-sim", "--config", tmp_path / "own.toml")
    wrong = {
        "features": "should be a name and a size, such as time=32, not 'features'",
        "features=x": "not 'features=x'",
        "rows=16": "has no free size 'rows'; its free sizes are: batch, features",
    }
    for text, reason in wrong.items():
        assert reason in here("test", file, "jsc-sim", "--size", text, *out)[2]
    _, _, err = here("train", "jsc-tiny", "jsc-sim", "--size", "features=16", *out)
    assert "--size is the size of a dimension of an .onnx file" in err


def test_weights_that_are_not_finite_can_be_allowed(ch, tmp_path):
    proto = pytorch()
    proto.graph.initializer[0].raw_data = np.full((32, 16), np.inf, F).tobytes()
    file = written(proto, tmp_path)
    ch("test", file, "jsc-sim", "--allow-nonfinite")
