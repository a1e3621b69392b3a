"""`ch synth` on the circuit of a project, with a program in the place of yosys."""

import json
from dataclasses import replace

import pytest

from chop.actions import synth
from chop.actions.base import ACTIONS
from chop.actions.config import ConfigError
from chop.actions.run import prepare
from chop.hardware.circuit import Circuit, Port
from chop.hardware.synthesis import programs
from chop.hardware.synthesis.resources import Placement

NETLIST = {
    "modules": {
        "top": {
            "ports": {},
            "cells": {
                "l": {
                    "type": "LUT2",
                    "port_directions": {"I0": "input", "I1": "input", "O": "output"},
                    "connections": {"I0": [2], "I1": [3], "O": [4]},
                }
            },
        }
    }
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a circuit; yosys writes a netlist with one LUT."""
    program = tmp_path / "yosys"
    program.write_text(f"#!/bin/sh\ncp '{tmp_path / 'netlist'}' netlist.json\n")
    program.chmod(0o755)
    (tmp_path / "netlist").write_text(json.dumps(NETLIST))
    yosys = programs.Program(programs.Tool("yosys", (str(program),)), "0.99", wheel="fake")
    monkeypatch.setattr("chop.hardware.synthesis.synthesize.find_yosys", lambda: yosys)
    port = Port("data_in_0", "x", (2,), 4, True, 2)
    sources = {"top.sv": "module top; endmodule\n"}
    circuit = Circuit(
        "top", "unrolled", "verilog", sources, (port,), (replace(port, name="data_out_0"),), 5.0, 1
    )
    circuit.write(tmp_path / "out" / "mine" / "hardware")
    return tmp_path / "out" / "mine"


def run(project, **flags):
    name = {"project": project.name, "project_dir": str(project.parent)}
    prepare(ACTIONS["synth"], {**name, **flags})()


def test_the_circuit_of_a_project_needs_no_model(project, capsys):
    run(project)
    assert "Resources on xilinx, by yosys 0.99" in capsys.readouterr().err
    told = json.loads((project / "hardware" / "synth" / "synthesis.json").read_text())
    assert (told["luts"], told["target"], told["latency"]) == (1, "xilinx", 1)
    assert (project / "hardware" / "synth" / "synthesis.svg").is_file()


def test_a_missed_clock_period_is_a_warning_on_the_terminal(project, capsys, monkeypatch):
    placed = Placement(device="LFE5U-25F", clock_mhz=122.53, utilization={}, tool="", seconds=1)
    module = "chop.hardware.synthesis.synthesize"
    nextpnr = programs.Program(programs.Tool("nextpnr-ecp5", ("nextpnr",)), "1", wheel="fake")
    monkeypatch.setattr(f"{module}.find_nextpnr", lambda: nextpnr)
    monkeypatch.setattr(f"{module}.place_netlist", lambda *arguments: placed)
    run(project, target="ecp5", place=True)
    printed = capsys.readouterr().err
    assert "WARNING  The placed circuit reaches 122.5 MHz (8.16 ns)" in printed


def test_the_python_function_does_the_same(project):
    assert synth(project).luts == 1
    assert synth(project, target="ecp5").target == "ecp5"


def test_a_table_in_the_file_sets_the_options_and_the_command_line_goes_first(project, tmp_path):
    file = tmp_path / "synth.toml"
    file.write_text('[synth]\ntarget = "ecp5"\n')
    run(project, config=str(file))
    result = project / "hardware" / "synth" / "synthesis.json"
    assert json.loads(result.read_text())["target"] == "ecp5"
    run(project, config=str(file), target="xilinx")
    assert json.loads(result.read_text())["target"] == "xilinx"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"place": True}, "only circuits for ECP5 can be placed"),
        ({"clock": "3"}, r"--clock 3\.0: the circuit in .* was emitted with 5\.0"),
        ({"backend": "streaming"}, "--backend streaming: .* add --run-emit"),
        ({"max_parallelism": "4"}, "--max-parallelism is for the emission .* add --run-emit"),
        ({"max_adders": "4"}, "--max-adders is for the emission"),
        ({"argmax": True}, "--argmax is for the emission"),
        ({"timeout": "0"}, "--timeout: should be greater than 0, not '0'"),
        ({"target": "ecp"}, "--target: should be 'xilinx' or 'ecp5', not 'ecp'; did you mean"),
        ({"reports": ["none.rpt"]}, "--report: there is no file or folder"),
        ({"run_emit": True}, "a circuit is required; give the project"),
        ({"run_emit": True, "model": "jsc-tiny", "dataset": "jsc-sim"}, "a checkpoint is required"),
    ],
)
def test_wrong_options_are_refused_before_any_work(project, flags, sentence):
    with pytest.raises(ConfigError, match=sentence):
        run(project, **flags)
    assert not (project / "hardware" / "synth").exists()


def test_vhdl_is_refused_before_a_circuit_is_replaced(project):
    names = {"model": "jsc-tiny", "dataset": "jsc-sim", "load_name": str(project)}
    before = Circuit.read(project / "hardware")
    with pytest.raises(ConfigError, match="yosys reads Verilog, not VHDL; emit the circuit with"):
        run(project, **names, run_emit=True, language="vhdl")
    assert Circuit.read(project / "hardware") == before
    replace(before, language="vhdl").write(project / "hardware")
    with pytest.raises(ConfigError, match="yosys reads Verilog, not VHDL; emit the circuit with"):
        run(project)


def test_other_files_than_reports_are_refused(project):
    with pytest.raises(ConfigError, match=r"--report: .*top\.sv is not a report of Vivado or"):
        run(project, reports=[str(project / "hardware" / "rtl" / "top.sv")])


@pytest.mark.parametrize("table", ['target = "virtex"', "timeout = -1", "tagret = 1", "place = 1"])
def test_a_wrong_table_is_refused_with_its_key(project, tmp_path, table):
    file = tmp_path / "synth.toml"
    file.write_text(f"[synth]\n{table}\n")
    with pytest.raises(ConfigError, match=rf"synth\.toml: synth.*{table.split()[0]}"):
        run(project, config=str(file))


@pytest.mark.parametrize("names", [{}, {"model": "jsc-tiny"}])
def test_without_a_project_the_names_are_needed(names):
    with pytest.raises(ConfigError, match=r"a circuit is required; .* --project"):
        prepare(ACTIONS["synth"], names)


def test_a_project_without_a_circuit_is_refused(project):
    with pytest.raises(FileNotFoundError, match=r"no circuit in .* run ch emit first"):
        prepare(ACTIONS["synth"], {"project": "other", "project_dir": str(project.parent)})
    assert not (project.parent / "other").exists()
