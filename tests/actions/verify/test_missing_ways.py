"""Ways that a project does not have are named, with the commands that add them, or are required."""

import importlib.util
import shlex
import shutil

import pytest

from .projects import FEW, NAMES, ONNX, SAVED, certificate, failed


def added_by(sentence):
    """The words of the command at the end of a sentence."""
    return shlex.split(sentence.partition("add it with ")[2])[1:]


def exported(here, project, kind):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    words = (*NAMES, "--load", project / SAVED, "--format", kind, "--cpu", 0)
    code, out, err = here("export", *words)
    assert code == 0, out + err
    return project / "software" / "onnx" / f"{kind}.onnx"


def test_a_certificate_of_two_ways_says_which_are_missing(here, project):
    code, out, err = here("verify", project, *FEW)
    assert code == 0, out + err
    record = certificate(project)
    assert [*record["missing"]] == ["onnx", "verilog"]
    assert added_by(record["missing"]["verilog"])[:5] == [
        "emit",
        *NAMES,
        "--load",
        str(project / SAVED),
    ]
    table = [line.split() for line in (out + err).splitlines()]
    assert ["onnx", "missing"] in table
    assert ["verilog", "missing"] in table
    page = (project / "certificate.html").read_text()
    assert "Not compared, onnx: There is no ONNX file in" in page
    assert page.count("missing</td>") == 2


def test_the_command_in_a_certificate_adds_the_way(here, project):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    assert here("verify", project, *FEW)[0] == 0
    code, out, err = here(*added_by(certificate(project)["missing"]["onnx"]))
    assert code == 0, out + err
    assert here("verify", project, *FEW, "--against", "onnx", "--against", "simulation")[0] == 0
    assert [way["file"] for way in certificate(project)["ways"]] == [None, None, ONNX, ONNX]
    assert certificate(project)["missing"] == {}


def test_a_way_that_is_required_must_be_compared_and_not_only_be_there(here, project):
    """A float file has no codes, and would pass beside the simulation."""
    from .test_onnx_files import edited_onnx

    file = exported(here, project, "integer")
    edited_onnx(project, lambda model: model.metadata_props.clear())
    file.rename(file.with_name("onnx.onnx"))
    assert here("verify", project, *FEW)[0] == 0
    said = failed(here, project, "--against", "simulation", "--against", "onnx")
    assert said.startswith("ch: onnx was not compared: the ONNX file software/onnx/onnx.onnx: it")
    assert certificate(project)["verdict"] == "different"


@pytest.mark.filterwarnings("ignore")
def test_a_qonnx_file_is_run_by_qonnx_and_a_wrong_weight_in_it_is_found(here, project):
    pytest.importorskip("qonnx")
    import onnx

    file = exported(here, project, "qonnx")
    code, out, err = here("verify", project, *FEW)
    assert code == 0, out + err
    _, integers, way = certificate(project)["ways"]
    assert (way["mismatches"], way["score"], way["notes"]) == (0, integers["score"], [])
    assert certificate(project)["versions"]["qonnx"]
    model = onnx.load(file)
    weight = next(
        t for t in model.graph.initializer if t.name.endswith("weight") and len(t.dims) == 2
    )
    array = onnx.numpy_helper.to_array(weight).copy()
    array[0] = 0.5
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    onnx.save(model, file)
    said = failed(here, project)
    assert "software/onnx/qonnx.onnx differs from the integer graph: node 'seq_" in said


def test_a_qonnx_file_is_named_as_not_run_without_qonnx(here, project, monkeypatch):
    exported(here, project, "qonnx")
    find = importlib.util.find_spec
    hidden = lambda name, *a: None if name == "qonnx" else find(name, *a)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    assert here("verify", project, *FEW)[0] == 0
    (note,) = certificate(project)["ways"][2]["notes"]
    assert note.startswith("it is not run: onnxruntime has no kernels for the nodes of QONNX, and")
    said = failed(here, project, "--against", "onnx")
    assert "qonnx is not installed (pip install qonnx)" in said


def test_a_qonnx_file_of_a_stranger_runs_no_module_of_its_choice(here, project, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    """qonnx imports the module that a domain names."""
    import onnx

    file = exported(here, project, "qonnx")
    model = onnx.load(file)
    node = next(n for n in model.graph.node if n.op_type == "Quant")
    model.opset_import.append(onnx.helper.make_opsetid("qonnx.custom_op.evil", 1))
    node.domain = "qonnx.custom_op.evil"
    onnx.save(model, file)
    said = failed(here, project, "--against", "onnx")
    assert "it has the operator qonnx.custom_op.evil.Quant, which is not run" in said


def test_a_file_in_a_project_is_verified_as_that_project(here, project):
    file = exported(here, project, "qcdq")
    code, out, err = here("verify", file, *FEW)
    assert code == 0, out + err
    assert [way["way"] for way in certificate(project)["ways"]] == ["integers", "onnx", "onnx"]


def test_a_file_outside_a_project_is_compared_with_the_network_that_is_read_from_it(
    here, project, tmp_path
):
    file = shutil.copy(exported(here, project, "qcdq"), tmp_path / "net.onnx")
    place = ("--project-dir", tmp_path / "files")
    code, out, err = here("verify", file, *FEW, *place)
    assert code == 0, out + err
    record = certificate(tmp_path / "files" / "net")
    assert {way["way"]: way["mismatches"] for way in record["ways"]} == {
        "simulation": 0,
        "integers": None,
        "onnx": 0,
    }
    assert record["network"]["dataset"] == "jsc-sim"
    assert [row["file"] for row in record["artefacts"] if row["kind"] == "onnx"] == ["net.onnx"]
    code, out, err = here("verify", file, "--again", *place, "--cpu", 0)
    assert code == 0, out + err


def test_a_file_that_cannot_be_verified_alone_says_what_to_do(here, project, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    import onnx

    file = shutil.copy(exported(here, project, "integer"), tmp_path / "net.onnx")
    code, _, err = here("verify", file, *FEW)
    assert code == 2
    assert "put it into software/onnx of the project of its network, and give that project" in err
    model = onnx.load(shutil.copy(exported(here, project, "qcdq"), file))
    model.metadata_props.clear()
    onnx.save(model, file)
    code, _, err = here("verify", file, *FEW)
    assert code == 2
    assert f"does not say which data set it was made for; call ch verify {file} DATASET" in err
    code, _, err = here("verify", tmp_path / "gone.onnx", *FEW)
    assert code == 2
    assert "gone.onnx" in err
