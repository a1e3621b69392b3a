"""What is refused, in one sentence."""

import shutil

import pytest

from .projects import FEW, SAVED


def test_what_is_no_project_is_refused(here, project, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "runs" / "empty" / "software").mkdir(parents=True)
    place = ("--project-dir", project.parent)
    for name, said in [
        ("nothing", "there is no project 'nothing' in"),
        ("q", "there is no project 'q' in"),
        (tmp_path / "other", "is not a project: it has neither software nor hardware in it"),
        ("empty", "is empty: it has no saved graph, ONNX file or circuit to compare; run"),
    ]:
        code, _, err = here("verify", name, *place)
        assert code == 2
        assert said in err


def test_without_a_project_the_sentence_says_what_to_give(here, project):
    code, _, err = here("verify", "--project-dir", project.parent)
    assert code == 2
    assert (
        "give a project to verify, by its directory or its name, or give MODEL and DATASET" in err
    )
    code, out, err = here("verify", "--project-dir", project.parent, "--project", "p", *FEW)
    assert code == 0, out + err


def test_a_project_without_a_network_needs_a_checkpoint(here, with_onnx):
    shutil.rmtree(with_onnx / "software" / "transform")
    code, _, err = here("verify", with_onnx, *FEW)
    assert code == 2
    assert "has no saved graph, so the network of its files is not known; give" in err


def test_a_data_set_that_is_not_recorded_or_not_known_is_refused(here, project):
    file = project / SAVED / "graph.json"
    text = file.read_text()
    file.write_text(text.replace('"dataset": "jsc-sim"', '"dataset": ""'))
    code, _, err = here("verify", project, *FEW)
    assert code == 2
    assert "does not say which data set it was made from; call ch verify MODEL DATASET" in err
    file.write_text(text.replace('"dataset": "jsc-sim"', '"dataset": "jsc-gone"'))
    code, _, err = here("verify", project, *FEW)
    assert code == 2
    assert "unknown data set 'jsc-gone'" in err or "unknown dataset 'jsc-gone'" in err


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--against", "onnx"], 1, "there is no ONNX file in"),
        (["--against", "verilog"], 1, "there is no circuit in"),
        (["--against", "integers"], 2, "--against integers compares nothing"),
        (["--against", "vhdl"], 2, "--against"),
        (["--again"], 2, "--again: there is no certificate.json in"),
        (["--samples", "0"], 2, "--samples"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_loaded(here, project, flags, code, said):
    got, _, err = here("verify", project, *flags)
    assert got == code
    assert said in err
    assert "Initialising" not in err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "mase-certificate"}'])
def test_a_damaged_certificate_is_refused(here, project, text):
    (project / "certificate.json").write_text(text)
    code, _, err = here("verify", project, *FEW)
    assert code == 1
    assert "certificate.json" in err.splitlines()[-1]
