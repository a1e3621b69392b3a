"""`ch export`: from a checkpoint to an ONNX file that other tools read."""

import json
import os
import time

import pytest
import torch
from torch import nn

from chop.actions import export
from chop.ir import MaseGraph
from chop.passes import Pipeline

from .own_network import saved_network


@pytest.fixture
def words(here, tmp_path):
    """A quantised network, as the words of a command."""
    with saved_network(here, tmp_path, "exports-own", width=8) as (words, saved):
        yield [*words, "--load", saved]


def facts_of(file):
    import onnx

    return {prop.key: prop.value for prop in onnx.load(file).metadata_props}


def test_a_file_lies_in_the_project_of_its_checkpoint(here, words, tmp_path, package):
    package("onnx")
    for kind in ("qdq", "qonnx"):
        code, out, err = here("export", *words, "--format", kind)
        assert code == 0, out + err
        assert "Export is completed" in out + err
        file = tmp_path / "runs" / "p" / "software" / "onnx" / f"{kind}.onnx"
        facts = facts_of(file)
        assert facts["mase.format"] == kind
        assert len(facts["mase.network"]) == 64
        assert {*json.loads(facts["mase.formats"])} == {"_0", "_1", "_2"}


def test_the_format_may_stand_in_a_table_and_the_flag_goes_first(here, words, tmp_path, package):
    package("onnx")
    (tmp_path / "run.toml").write_text('[export]\nformat = "qcdq"\n')
    folder = tmp_path / "runs" / "p" / "software" / "onnx"
    for flags, kind in (([], "qcdq"), (["--format", "qdq"], "qdq")):
        code, out, err = here("export", *words, "--config", tmp_path / "run.toml", *flags)
        assert code == 0, out + err
        assert facts_of(folder / f"{kind}.onnx")["mase.format"] == kind


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["--format", "onnx"],
            "--format onnx is for float networks, and these nodes are quantised",
        ),
        (["--accuracy", 7], "--accuracy: "),
        (["--format", "qd"], "--format: should be 'onnx', 'qdq', 'qcdq', 'qonnx' or 'integer'"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_sentence(
    here, words, flags, sentence, tmp_path, package
):
    package("onnx")
    code, _, err = here("export", *words, *flags)
    assert code in (1, 2)
    last = err.strip().splitlines()[-1]
    assert last.startswith("ch: ")
    assert sentence in last
    assert not (tmp_path / "runs" / "p" / "software" / "onnx").exists()


def test_the_metadata_have_the_accuracy_of_the_latest_test_of_the_checkpoint(
    here, words, tmp_path, package
):
    package("onnx")
    software = tmp_path / "runs" / "p" / "software"

    def exported(*flags):
        code, out, err = here("export", *words, "--format", "qdq", *flags)
        assert code == 0, out + err
        return facts_of(software / "onnx" / "qdq.onnx").get("mase.accuracy")

    assert exported() is None
    assert here("test", *words)[0] == 0
    file = software / "checkpoints" / "test_metrics.json"
    content = json.loads(file.read_text())
    assert exported() == str(content["metrics"]["test_acc_epoch"])
    assert exported("--accuracy", 0.25) == "0.25"
    file.write_text(json.dumps({**content, "dataset": "another"}))
    assert exported() is None
    file.write_text("{")
    assert exported() is None


def test_a_test_that_is_older_than_the_checkpoint_does_not_count(here, words, tmp_path, package):
    package("onnx")
    assert here("test", *words)[0] == 0
    state = words[-1] / "state_dict.safetensors"
    os.utime(state, (time.time() + 60,) * 2)  # as if it had been written after the test
    assert here("export", *words, "--format", "qdq")[0] == 0
    file = tmp_path / "runs" / "p" / "software" / "onnx" / "qdq.onnx"
    assert "mase.accuracy" not in facts_of(file)


def test_a_wrong_table_is_refused_before_anything_is_loaded(here, words, tmp_path, package):
    package("onnx")
    (tmp_path / "run.toml").write_text('[export]\nfromat = "qdq"\n')
    code, _, err = here("export", *words, "--config", tmp_path / "run.toml")
    assert code == 2
    assert "'fromat'" in err
    assert "did you mean 'format'?" in err


def test_a_checkpoint_is_required(here):
    code, _, err = here("export", "jsc-tiny", "jsc-sim")
    assert code == 2
    assert "a checkpoint is required; give one with --load" in err


def test_a_missing_package_is_named_with_the_extra(here, words, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = here("export", *words)
    assert code != 0
    assert "ch export needs onnx; install it with:" in err


def test_the_function_takes_a_graph_and_returns_the_file(tmp_path, package):
    package("onnx")
    x = torch.randn(2, 4)
    prepare = Pipeline(["init_metadata", ("add_common_metadata", {"dummy_in": {"input": x}})])
    graph, _ = prepare(MaseGraph(nn.Sequential(nn.Linear(4, 2)).eval()))
    file = export(graph, project_dir=tmp_path)
    assert file == tmp_path / "software" / "onnx" / "onnx.onnx"
    assert facts_of(file)["mase.format"] == "onnx"
