"""Circuits that are right, edited, or of another network."""

import re
import shutil

import pytest

from .projects import (
    FEW,
    NAMES,
    SAVED,
    certificate,
    edited_weight,
    failed,
    integers_of,
    made_project,
    write_onnx,
)

rtl = pytest.mark.rtl


def emitted(here, project, backend, names=NAMES):
    words = (*names, "--load", project / SAVED, "--cpu", 0, "--backend", backend)
    code, out, err = here("emit", *words)
    assert code == 0, out + err
    return project / "hardware" / "rtl"


def edit_line(file, pattern, replacement):
    text = file.read_text()
    changed = re.sub(pattern, replacement, text, count=1)
    assert changed != text
    file.write_text(changed)


def test_without_verilator_the_sentence_says_how_to_install_it(here, project, monkeypatch):
    from chop.hardware.simulation import programs

    emitted(here, project, "streaming")
    monkeypatch.setattr(programs, "_packaged", lambda: None)
    monkeypatch.setattr(programs, "find_program", lambda name: None)
    said = failed(here, project)
    assert "simulation needs Verilator; install it with:" in said


@rtl
def test_an_edited_line_of_verilog_is_named_by_file_and_layer(here, with_onnx):
    pytest.importorskip("alkaid")
    folder = emitted(here, with_onnx, "unrolled")
    code, out, err = here("verify", with_onnx, *FEW)
    assert code == 0, out + err
    ways = certificate(with_onnx)["ways"]
    assert [way["way"] for way in ways] == ["simulation", "integers", "onnx", "onnx", "verilog"]
    assert len({way["score"] for way in ways}) == 1
    assert certificate(with_onnx)["versions"]["verilator"]
    assert not (with_onnx / "hardware" / "sim").exists()
    layer = sorted(folder.glob("seq_*.sv"))[0]
    edit_line(layer, r"kept_0 <= given_0;", "kept_0 <= ~given_0;")
    said = failed(here, with_onnx)
    assert "the circuit in hardware/rtl differs from the integer graph: node '" in said
    assert f"(of the module {layer.stem}) is " in said
    assert f"it is not what ch emit wrote: {layer.name} with the layers" in said
    assert "saved graph has been changed" not in said


@rtl
def test_an_edited_comment_of_verilog_is_named_though_the_codes_agree(here, project):
    folder = emitted(here, project, "streaming")
    with (folder / "top.sv").open("a") as file:
        file.write("// mine\n")
    said = failed(here, project)
    assert "the circuit in hardware/rtl is not what ch emit wrote: top.sv was edited" in said
    assert said.endswith("(its codes agree)")


@rtl
def test_a_circuit_of_another_network_is_named(here, project):
    emitted(here, project, "streaming")
    edited_weight(project)
    said = failed(here, project)
    assert "differs from the integer graph: node" in said
    assert "it was emitted from another network (checksum" in said


@rtl
def test_jsc_s_is_equal_in_all_four_ways(here, tmp_path):
    pytest.importorskip("alkaid")
    pytest.importorskip("onnxruntime")
    names = ("jsc-s", "jsc-sim")
    project = made_project(tmp_path, *names)
    write_onnx(project, integers_of(project))
    emitted(here, project, "unrolled", names)
    code, out, err = here("verify", project, "--cpu", 0)
    assert code == 0, out + err
    record = certificate(project)
    assert record["vectors"]["samples"] == record["vectors"]["random"] == 1024
    assert [way["mismatches"] for way in record["ways"]] == [0, None, 0, 0, 0]


def test_of_several_networks_the_one_of_the_circuit_is_verified(here, project):
    from chop.actions.certificate.project import with_project

    other = shutil.copytree(project / SAVED, project / "software" / "search_ckpts" / "trial_3")
    edited_weight(project)
    assert with_project({"model": str(project)})["load_name"] == str(project / SAVED)
    code, out, err = here("emit", *NAMES, "--load", other, "--cpu", 0, "--backend", "streaming")
    assert code == 0, out + err
    assert with_project({"model": str(project)})["load_name"] == str(other)
