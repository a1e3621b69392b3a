"""Commands that take a project remember what it was made with."""

import json

import pytest

TRAIN = ("train", "mlp", "jsc-sim", "--max-epochs", 1, "--batch-size", 8192, "--cpu", 0)


@pytest.fixture
def project(ch, tmp_path):
    """A project that was trained with options of its own."""
    config = tmp_path / "own.toml"
    config.write_text("legacy_val = true\n[model_args]\nhidden = [8]\n")
    ch(*TRAIN, "--config", config, "--project", "p")
    return tmp_path / "out" / "p"


def test_a_project_is_tested_without_its_model_and_data_set(ch, project):
    said = ch("test", "--load", project, "--cpu", 0)
    text = said.stdout + said.stderr
    assert "model = mlp" in text
    assert "model_args = {'hidden': [8]}" in text
    assert "the newest checkpoint" in text


def test_options_on_the_command_line_come_before_those_of_the_project(ch, project):
    said = ch("test", "jsc-tiny", "--load", project, "--cpu", 0, check=1)
    assert "model_args" not in said.stdout + said.stderr, "they are of another model"


def test_code_of_a_project_is_named_and_not_run(ch, project, tmp_path):
    file = project / "software" / "made_with.json"
    content = json.loads(file.read_text()) | {"imports": [str(tmp_path / "own.py")]}
    file.write_text(json.dumps(content))
    said = ch("test", "--load", project, "--cpu", 0)
    assert f"only if you give --import {tmp_path}" in " ".join((said.stdout + said.stderr).split())


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("dataset", "cifar10", "the data set cifar10, which is downloaded only if you"),
        ("model", "net.onnx", "net.onnx, which is outside its folder and opened only if you"),
    ],
)
def test_nothing_is_opened_or_downloaded_because_a_project_names_it(
    ch, project, tmp_path, name, value, why
):
    (tmp_path / "net.onnx").write_bytes(b"somebody else's")
    path = str(tmp_path / value) if name == "model" else value
    given = {"model": "mlp", "dataset": "jsc-sim", name: path}
    (project / "software" / "made_with.json").write_text(json.dumps(given))
    said = ch("test", "--load", project, "--cpu", 0, check=2).stderr
    assert why in said
    assert "to use it, give MODEL and DATASET after the command" in said


@pytest.mark.parametrize("content", ['{"model": 3}', '{"model": "jsc-tiny", ', "[]"])
def test_a_damaged_record_is_refused_in_one_sentence(ch, project, content):
    (project / "software" / "made_with.json").write_text(content)
    said = ch("test", "--load", project, "--cpu", 0, check=2).stderr
    assert "made_with.json" in said
    assert "delete it, and give the options on the command line" in said


def test_a_path_of_an_earlier_run_says_that_there_is_a_later_one(ch, project, tmp_path):
    ch(*TRAIN, "--config", tmp_path / "own.toml", "--project", "p")
    folder = project / "software" / "training_ckpts"
    said = ch("test", "--load", folder / "best.ckpt", "--load-type", "pl", "--cpu", 0)
    text = " ".join((said.stdout + said.stderr).split())
    assert "is of an earlier run; a later one beside it wrote best-v1.ckpt" in text
    said = ch("test", "--load", project, "--cpu", 0)
    assert "best-v1.ckpt" in "".join((said.stdout + said.stderr).split())
