"""Hardware projects are found where they were written last."""

import os

import pytest

from chop.hardware import projects
from chop.hardware.circuit import Circuit, Port
from chop.hardware.projects import HardwareProject, last_project, note_project

PORT = Port("data_in_0", "x", (2,), 4, True, 2)
CIRCUIT = Circuit("top", "unrolled", "verilog", {"top.sv": ""}, (PORT,), (PORT,), 5.0, 1)


@pytest.fixture(autouse=True)
def output(tmp_path, monkeypatch):
    """The directory of all runs, and no project of an earlier test."""
    monkeypatch.setattr(projects, "default_project_dir", lambda: tmp_path / "mase_output")
    monkeypatch.setattr(projects, "_last", [])
    return tmp_path / "mase_output"


def test_the_project_of_this_process_comes_first(output, tmp_path):
    CIRCUIT.write(output / "new" / "hardware")
    CIRCUIT.write(tmp_path / "elsewhere" / "hardware")
    note_project(HardwareProject(tmp_path / "elsewhere"))
    assert last_project().folder == tmp_path / "elsewhere"


def test_otherwise_it_is_the_newest_of_all_runs(output):
    for age, name in enumerate(("newest", "older", "oldest")):
        CIRCUIT.write(output / name / "hardware")
        manifest = output / name / "hardware" / "rtl" / "circuit.json"
        os.utime(manifest, (1e9 - age, 1e9 - age))
    assert last_project().folder == output / "newest"


def test_a_project_that_was_deleted_is_not_the_last(output, tmp_path):
    note_project(HardwareProject(tmp_path / "gone"))
    CIRCUIT.write(output / "there" / "hardware")
    assert last_project().folder == output / "there"


def test_no_project_at_all_is_one_sentence():
    with pytest.raises(FileNotFoundError, match=r"no circuit was emitted yet.*emit_verilog_top"):
        last_project()


def test_a_relative_directory_does_not_depend_on_later_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert HardwareProject.at("here").folder == tmp_path / "here"
    assert HardwareProject.at(None, "mlp").folder == tmp_path / "mase_output" / "mlp"
