"""`ch test --runtime onnxruntime`: the ONNX file has the accuracy of the network, and a latency."""

import json

import pytest

pytest.importorskip("onnx", reason="needs the extra onnx: run `make test-all`")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

from chop.ir.graph.saving import load_graph
from chop.onnx import save_model
from chop.onnx.integers import integer_model

from .own_network import saved_network


@pytest.fixture
def network(here, tmp_path):
    """A quantised network that is saved, as the words of a command."""
    with saved_network(here, tmp_path, "runtime-own") as (words, saved):
        yield [*words, "--batch-size", 16], saved


def metrics_in(folder):
    """The contents of all files of metrics, the earliest first."""
    files = sorted(folder.rglob("test_metrics*.json"), key=lambda file: file.stat().st_mtime_ns)
    return [json.loads(file.read_text()) for file in files]


def test_the_file_scores_as_the_network_does_and_its_latency_is_shown(network, here, tmp_path):
    words, saved = network
    for options in ((), ("--runtime", "onnxruntime", "--threads", 2)):
        code, out, err = here("test", *words, "--load", saved, *options)
        assert code == 0, out + err
    torch_run, onnx_run = (content["metrics"] for content in metrics_in(tmp_path / "runs"))
    assert onnx_run.items() >= torch_run.items()
    quartiles = [onnx_run[f"latency_ms_batch_16{end}"] for end in ("_lower", "", "_upper")]
    assert quartiles == sorted(quartiles)
    assert quartiles[0] > 0
    assert "latency_ms_batch_1" in out + err
    assert "2 of 2 layers have integer kernels" in out + err
    assert "test_acc" in out + err


def test_a_file_is_scored_as_it_is(network, here, tmp_path):
    words, saved = network
    file = save_model(integer_model(load_graph(saved).to_integers()), tmp_path / "integer.onnx")
    place = ("--project-dir", tmp_path / "runs", "--project", "q")
    for load in (saved, file):
        options = ("--load", load, "--runtime", "onnxruntime", *place)
        code, out, err = here("test", *words, *options)
        assert code == 0, out + err
    one, other = (content["metrics"] for content in metrics_in(tmp_path / "runs"))
    assert one["test_loss_epoch"] == other["test_loss_epoch"]


def test_a_float_network_is_run_as_a_float_file(network, here, tmp_path):
    words, _ = network
    place = ("--project-dir", tmp_path / "runs", "--project", "q")
    code, out, err = here("train", *words, "--max-epochs", 1, *place)
    assert code == 0, out + err
    load = ("--load", tmp_path / "runs" / "q", "--runtime", "onnxruntime")
    code, out, err = here("test", *words, *load)
    assert code == 0, out + err
    assert "as onnx in onnxruntime" in out + err
    code, out, err = here("test", *words, *load, "--export-format", "integer")
    assert code == 1
    assert "--export-format integer is for quantised networks, and these layers are in" in err
    assert "_0, _2; quantise them first, or use --export-format onnx" in err


def test_a_quantised_network_is_no_float_file(network, here):
    words, saved = network
    load = ("--load", saved, "--runtime", "onnxruntime", "--export-format", "onnx")
    code, _, err = here("test", *words, *load)
    assert code == 1
    assert "use --export-format qdq or another quantised one" in err


def test_a_file_for_other_samples_is_refused_as_without_a_runtime(network, here, tmp_path):
    words, saved = network
    assert here("export", *words, "--load", saved, "--format", "qcdq")[0] == 0
    file = saved.parents[1] / "onnx" / "qcdq.onnx"
    import onnx

    model = onnx.load(file)
    del model.metadata_props[:]  # other classes would be refused first
    onnx.save(model, file)
    for runtime in ("torch", "onnxruntime"):
        _, _, err = here("test", file, "digits", "--runtime", runtime)
        assert "takes samples of shape 2, but those of data set 'digits' have 1 x 8 x 8" in err


@pytest.mark.parametrize(
    ("kind", "runtime", "said"),
    [
        ("qonnx", "onnxruntime", "has no kernels for the nodes of QONNX"),
        ("integer", "torch", "run the file as it is with --runtime onnxruntime"),
    ],
)
def test_a_file_that_cannot_run_says_what_can(network, here, tmp_path, kind, runtime, said):
    words, saved = network
    assert here("export", *words, "--load", saved, "--format", kind)[0] == 0
    file = saved.parents[1] / "onnx" / f"{kind}.onnx"
    place = ("--project-dir", tmp_path / "runs", "--project", "q")
    code, _, err = here("test", file, *words[1:], "--runtime", runtime, *place)
    assert code in (1, 2)
    assert said in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--runtime", "onnx"), "onnxruntime"),
        (("--runtime", "onnxruntime", "--threads", 0), "--threads"),
        (("--runtime", "onnxruntime", "--export-format", "qonnx"), "--export-format"),
        (("--threads", 2), "--threads is for --runtime onnxruntime; add it, or omit --threads"),
    ],
)
def test_wrong_options_are_refused(network, here, options, said):
    words, saved = network
    code, out, err = here("test", *words, "--load", saved, *options)
    assert code == 2
    assert said in out + err


def test_what_is_no_onnx_file_is_refused_in_one_sentence(network, here, tmp_path):
    words, _ = network
    (tmp_path / "text.onnx").write_text("no model")
    load = ("--load", tmp_path / "text.onnx", "--runtime", "onnxruntime")
    place = ("--project-dir", tmp_path / "runs", "--project", "q")
    code, out, err = here("test", *words, *load, *place)
    assert code in (1, 2)
    assert "text.onnx is damaged, truncated or not an ONNX file; export or copy it again" in err
    assert "Traceback" not in out + err
