"""What a certificate says, and how it is repeated."""

import hashlib
import json

import pytest
import torch

from chop.actions import verify
from chop.actions.certificate.artefacts import changes
from chop.actions.certificate.machine import machine
from chop.actions.certificate.page import certificate_page
from chop.actions.certificate.vectors import Vectors
from chop.actions.certificate.ways import Difference, compared
from chop.checkpoints import load_graph
from chop.integers import Requantize
from chop.integers.digest import graph_digest

from .projects import FEW, NAMES, SAVED, certificate, edited_weight, failed, integers_of


def test_a_project_is_found_by_its_name_and_gets_a_certificate_and_a_page(here, project):
    code, out, err = here("verify", "p", "--project-dir", project.parent, *FEW)
    assert code == 0, out + err
    assert (
        f"Not compared: there is no circuit in {project / 'hardware'}; add it with ch emit" in err
    )
    record = certificate(project)
    assert record["verdict"] == "equal"
    assert [way["way"] for way in record["ways"]] == ["simulation", "integers"]
    vectors = record["vectors"]
    assert (vectors["samples"], vectors["random"], vectors["seed"]) == (40, 24, 0)
    assert vectors["total"] == 64 + vectors["boundary"]
    assert record["network"]["checksum"] == graph_digest(integers_of(project))
    sums = {row["file"]: row["sha256"] for row in record["artefacts"]}
    state = project / SAVED / "state_dict.safetensors"
    assert sums[f"{SAVED}/{state.name}"] == hashlib.sha256(state.read_bytes()).hexdigest()
    page = (project / "certificate.html").read_text()
    assert "All ways that the project has give the same codes for all vectors; others are" in page
    assert "http" not in page.replace("http-equiv", "")


def layout(value):
    """The keys of JSON, with lists as their first item."""
    if isinstance(value, dict):
        return {key: layout(item) for key, item in value.items()}
    return [layout(value[0])] if isinstance(value, list) and value else type(value).__name__


def test_the_layout_of_a_certificate_is_as_recorded(here, project, golden):
    assert here("verify", project, *FEW)[0] == 0
    record = certificate(project)
    record["versions"] = dict.fromkeys(record["versions"], "")  # some may not be installed
    record["machine"]["flags"] = []
    golden("certificate.json", json.dumps(layout(record), indent=2) + "\n")


def test_the_same_vectors_and_codes_come_again_and_others_with_another_seed(here, project):
    assert here("verify", project, *FEW)[0] == 0
    first = certificate(project)
    assert here("verify", project, *FEW)[0] == 0
    again = certificate(project)
    assert {**first, "made": ""} == {**again, "made": ""}
    assert here("verify", project, *FEW, "--seed", 1)[0] == 0
    assert certificate(project)["vectors"]["sha256"] != first["vectors"]["sha256"]


def test_model_and_data_set_can_be_named_instead_of_a_project(here, project):
    words = (*NAMES, "--load", project / SAVED, *FEW)
    code, out, err = here("verify", *words, "--against", "simulation")
    assert code == 0, out + err
    assert certificate(project)["options"]["against"] == ["simulation"]


def test_again_takes_the_options_of_the_certificate_and_writes_nothing(here, project):
    assert here("verify", project, *FEW, "--seed", 5)[0] == 0
    before = (project / "certificate.json").read_bytes()
    code, out, err = here("verify", project, "--again", "--cpu", 0)
    assert code == 0, out + err
    assert "holds" in err
    assert (project / "certificate.json").read_bytes() == before


def test_again_names_the_file_that_has_changed_and_fails_until_it_is_verified(here, project):
    assert here("verify", project, *FEW)[0] == 0
    edited_weight(project)
    for _ in range(2):
        code, _, err = here("verify", project, "--again", "--cpu", 0)
        assert code == 1
        assert f"{SAVED}/state_dict.safetensors has changed" in err
        assert "the network computes something else" in err
    code, _, err = here("verify", project, *FEW)
    assert code == 0
    assert f"{SAVED}/state_dict.safetensors has changed" in err
    assert here("verify", project, "--again", "--cpu", 0)[0] == 0


def test_a_certificate_of_a_stranger_sets_no_code_to_run(here, project, tmp_path):
    assert here("verify", project, *FEW)[0] == 0
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    record = certificate(project)
    record["options"] |= {"imports": [str(tmp_path / "evil.py")], "config": "x.toml"}
    (project / "certificate.json").write_text(json.dumps(record))
    assert here("verify", project, "--again", "--cpu", 0)[0] == 0
    assert not (tmp_path / "ran").exists()


def test_a_simulation_that_differs_is_named_by_its_layer(here, project, monkeypatch):
    run = Requantize.run
    monkeypatch.setattr(Requantize, "run", lambda self, x: run(self, x) - 1)
    said = failed(here, project)
    assert said.startswith("ch: the float simulation differs from the integer graph: node 'seq_")
    assert "in sample 0 of the test split" in said


def test_python_gets_the_certificate_or_an_error(project):
    from chop.dataset import MaseDataModule

    data = MaseDataModule(name="jsc-sim", batch_size=64, num_workers=0, model_name="jsc-tiny")
    graph = load_graph(project / SAVED)
    options = {"project_dir": project, "samples": 8, "random_vectors": 0}
    made = verify(graph, data_module=data, **options)
    assert made.record["vectors"]["random"] == 0
    assert certificate(project)["verdict"] == "equal"
    with pytest.raises(FileNotFoundError, match="add it with ch export"):
        verify(graph, data_module=data, against=["onnx"], **options)


def test_the_first_difference_is_that_of_the_first_vector():
    own = [torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)]
    got = [x.clone() for x in own]
    got[0][2, 0], got[1][1] = 4, 7
    found = compared(own, got)
    assert (found.mismatches, found.wrong_vectors) == (2, 2)
    assert found.difference("out") == Difference("out", 1, (), 0, 7)
    assert compared(own, own).difference("out") is None


def test_vectors_are_named_by_their_kind():
    vectors = Vectors({"x": torch.zeros(9, 1)}, torch.zeros(4), "test", 3, 0)
    assert vectors.boundary == 2
    assert [vectors.name(i) for i in (0, 4, 8)] == [
        "sample 0 of the test split",
        "random vector 0",
        "boundary vector 1",
    ]


def test_changes_of_files_are_told_apart():
    before = [{"file": n, "sha256": s} for n, s in (("a", "1"), ("b", "1"), ("c", "1"))]
    now = [{"file": n, "sha256": s} for n, s in (("a", "2"), ("c", "1"), ("d", "1"))]
    assert changes(before, now) == ["a has changed", "b is gone", "d is new"]


def test_a_processor_with_vnni_is_told_by_its_flags(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2 avx512_vnni\n")
    assert machine(file)["cpu"] == "A CPU"
    assert machine(file)["flags"] == ["avx2", "avx512_vnni"]
    assert machine(file)["vnni"] is True
    file.write_text("model name: B\nflags: fpu avx2\n")
    assert machine(file)["vnni"] is False


def test_the_page_escapes_what_is_in_the_record(here, project):
    assert here("verify", project, *FEW)[0] == 0
    record = certificate(project)
    record["command"] = "<script>alert(1)</script>"
    assert "<script>" not in certificate_page(record)
