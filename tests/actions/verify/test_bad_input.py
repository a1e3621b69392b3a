"""What is refused, in one sentence."""

import json
import shutil
from random import Random

import pytest

from chop.actions.certificate.page import certificate_page
from chop.actions.certificate.project import with_project
from chop.actions.certificate.record import differences, read_certificate
from chop.actions.certificate.structure import damage
from chop.actions.resolve import resolve
from tests.fuzz.mutations import at, changed_json, walk

from .projects import FEW, SAVED, certificate, edited_weight


def test_what_is_no_project_is_refused(here, project, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "runs" / "empty" / "software").mkdir(parents=True)
    place = ("--project-dir", project.parent)
    for name, said in [
        ("nothing", "there is no project 'nothing' in"),
        ("q", "there is no project 'q' in"),
        (tmp_path / "other", "is not a project: it has neither software nor hardware in it"),
        (
            "empty",
            "has no saved graph, ONNX file or circuit to compare; make one with ch transform",
        ),
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


def test_a_project_without_a_network_says_what_is_missing_and_what_makes_it(here, with_onnx):
    shutil.rmtree(with_onnx / "software" / "transform")
    code, _, err = here("verify", with_onnx, *FEW)
    assert code == 2
    own = f"--project-dir {with_onnx.parent} --project p"
    said = (
        f"{with_onnx} has ONNX files but no saved graph (graph.json) to compare with; make it with"
    )
    assert said in err
    assert f"ch transform MODEL DATASET --config FILE {own}, or give another with" in err
    assert f"ch verify MODEL DATASET --load GRAPH {own}" in err


def test_a_project_that_holds_only_a_circuit_says_what_it_is_compared_with(here, project):
    rtl = project / "hardware" / "rtl"
    rtl.mkdir(parents=True)
    (rtl / "circuit.json").touch()
    shutil.rmtree(project / "software")
    code, _, err = here("verify", project, *FEW)
    assert code == 2
    assert f"{project} has a circuit but no saved graph (graph.json) to compare with" in err


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
    ("names", "said"),
    [
        (("jsc-tiny", "jsc"), "the data set jsc, which is downloaded only if you name it"),
        (("jsc-tiny", "cifar10"), "the data set cifar10, which is downloaded only if"),
        (
            ("/elsewhere/net.onnx", "jsc-sim"),
            "names the model file /elsewhere/net.onnx, which is outs",
        ),
    ],
)
def test_what_a_graph_names_is_not_opened_or_downloaded(
    here, project, monkeypatch, tmp_path, names, said
):
    monkeypatch.setenv("MASE_CACHE", str(tmp_path / "cache"))
    file = project / SAVED / "graph.json"
    content = json.loads(file.read_text())
    content["made_from"] = dict(zip(("model", "dataset"), names, strict=True))
    file.write_text(json.dumps(content))
    code, _, err = here("verify", project, *FEW)
    assert code == 2
    assert said in err
    assert f"to use it, call ch verify {' '.join(names)} --load" in err
    assert "Initialising" not in err


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--against", "onnx"], 1, "there is no ONNX file in"),
        (["--against", "verilog"], 1, "there is no circuit in"),
        (["--against", "integers"], 2, "--against integers: the integer graph is the reference"),
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
def test_a_damaged_certificate_is_refused_if_it_is_to_be_repeated(here, project, text):
    (project / "certificate.json").write_text(text)
    code, _, err = here("verify", project, "--again")
    assert code == 1
    assert "certificate.json" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"ways": [{}]}, "its 'ways.0.way' is missing"),
        ({"network": {"checksum": 3}}, "its 'network.checksum' is missing"),
        ({"bounds": 3}, "its 'bounds' is missing"),
        ({"codes": 7}, "its 'codes' is missing"),
        ({"codes": "7"}, "its 'codes' is missing"),
        ({"missing": ["onnx"]}, "its 'missing' is missing"),
        ({"verdict": "fine"}, "its 'verdict' is missing"),
        ({"made": "once"}, "its 'made' is missing"),
        ({"options": {"samples": 40}}, "its 'options.samples' is not an option"),
        ({"options": {"load_name": True}}, "its 'options.load_name' is not an option"),
        ({"format": 1}, "is not a certificate of MASE"),
    ],
)
def test_a_damaged_certificate_is_told_and_replaced(here, project, change, part):
    assert here("verify", project, *FEW)[0] == 0
    good = certificate(project)
    (project / "certificate.json").write_text(json.dumps({**good, **change}))
    code, _, err = here("verify", project, "--again")
    assert code == 1
    assert part in err.splitlines()[-1]
    code, _, err = here("verify", project, *FEW)
    assert code == 0, err
    assert "Not compared with the earlier certificate: " in err
    assert here("verify", project, "--again")[0] == 0


def test_every_part_of_a_certificate_is_checked(here, with_onnx):
    edited_weight(with_onnx)  # so that a difference is recorded
    assert here("verify", with_onnx, *FEW)[0] == 1
    good = certificate(with_onnx)
    assert damage(good) is None
    for path in list(walk(good))[1:]:
        if path not in (("format",), ("version",)):
            record = json.loads(json.dumps(good))
            at(record, path[:-1])[path[-1]] = {"x": [None]}
            assert damage(record) is not None, path


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]
)
def test_any_part_of_a_certificate_may_be_damaged(here, project, seed):
    assert here("verify", project, *FEW)[0] == 0
    good, random, reasons = certificate(project), Random(seed), []
    for _ in range(40):
        text = changed_json(random, json.dumps(good))
        (project / "certificate.json").write_bytes(text)
        try:
            resolve(with_project({"model": str(project), "again": True}))
            record = read_certificate(project)
            differences(record, good)
            certificate_page(record)
        except ValueError as error:
            reasons.append(str(error))
    assert all(len(reason.split()) > 3 for reason in reasons)
    assert here("verify", project, *FEW)[0] == 0
