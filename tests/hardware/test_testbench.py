"""The test bench for cocotb sends codes and finds codes that differ."""

import json
import logging
import sys
from dataclasses import replace

import pytest
import torch

from chop.hardware.circuit import Circuit, Port
from chop.hardware.projects import HardwareProject
from chop.hardware.testbench import run_bench, write_bench
from chop.hardware.tools import ToolError

# adds 1 to the first of three lanes; the last beat of a sample of 5 codes is not full
ADDER = """\
module adder (
    input  logic clk,
    input  logic rst,
    input  logic [11:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic [11:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    assign data_in_0_ready = !data_out_0_valid || data_out_0_ready;
    always_ff @(posedge clk) begin
        if (rst) data_out_0_valid <= 1'b0;
        else if (data_in_0_ready) begin
            data_out_0_valid <= data_in_0_valid;
            data_out_0 <= {data_in_0[11:4], data_in_0[3:0] + 4'd1};
        end
    end
endmodule
"""
CIRCUIT = Circuit(
    "adder",
    "streaming",
    "verilog",
    {"adder.sv": ADDER},
    (Port("data_in_0", "x", (5,), 4, True, 3),),
    (Port("data_out_0", "y", (5,), 4, True, 3),),
    5.0,
    2,
)
X = torch.randint(-8, 7, (6, 5), generator=torch.Generator().manual_seed(0))
Y = X + torch.tensor([1, 0, 0, 1, 0])


@pytest.fixture
def private_cache(tmp_path, monkeypatch):
    """A cache without builds."""
    monkeypatch.setenv("MASE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def project(folder, outputs=Y, **options):
    made = HardwareProject.at(folder)
    CIRCUIT.write(made.hardware)
    write_bench(CIRCUIT, [X], [outputs], made, **options)
    return made


def test_a_test_that_was_changed_by_hand_is_kept(tmp_path, caplog):
    made = project(tmp_path)
    (made.bench / "test.py").write_text("# mine\n")
    with caplog.at_level(logging.WARNING):
        project(tmp_path, Y + 1)
    assert (made.bench / "test.py").read_text() == "# mine\n"
    assert "test.py was changed, and is kept; delete it" in caplog.text
    (beat, *_), *_ = json.loads((made.bench / "vectors.json").read_text())["outputs"][0]["beats"]
    assert int(beat, 16) & 15 == int(Y[0, 0] + 1) & 15


def test_a_missing_bench_is_one_sentence(tmp_path):
    made = HardwareProject.at(tmp_path)
    CIRCUIT.write(made.hardware)
    with pytest.raises(FileNotFoundError, match=r"no test bench in .*run emit_cocotb"):
        run_bench(made)


def test_a_missing_cocotb_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolError, match=r"needs cocotb; install it with: .*pip install .*\[h"):
        run_bench(project(tmp_path))


def test_a_build_that_is_not_there_cannot_be_skipped(tmp_path, package, private_cache):
    package("cocotb")
    with pytest.raises(FileNotFoundError, match="has no program for this circuit; leave out skip"):
        run_bench(project(tmp_path), skip_build=True)


def test_the_bench_of_another_circuit_is_refused_but_sources_may_be_changed(
    tmp_path, package, private_cache
):
    package("cocotb")
    made = project(tmp_path)
    (made.rtl / "adder.sv").write_text(ADDER.replace("4'd1", "4'd2"))
    with pytest.raises(FileNotFoundError, match="leave out skip_build"):
        run_bench(made, skip_build=True)
    replace(CIRCUIT, clock_period=4.0).write(made.hardware)
    with pytest.raises(ValueError, match="belongs to another circuit; run emit_cocotb"):
        run_bench(made, skip_build=True)


# two inputs and two outputs without ready, as of circuits that give one result per clock
PAIR = """\
module pair (
    input  logic clk,
    input  logic rst,
    input  logic [3:0] data_in_0,
    input  logic data_in_0_valid,
    input  logic [3:0] data_in_1,
    input  logic data_in_1_valid,
    output logic [4:0] data_out_0,
    output logic data_out_0_valid,
    output logic [3:0] data_out_1,
    output logic data_out_1_valid
);
    always_ff @(posedge clk) begin
        data_out_0 <= {1'b0, data_in_0} + {1'b0, data_in_1};
        data_out_1 <= data_in_1;
        data_out_0_valid <= data_in_0_valid && data_in_1_valid && !rst;
        data_out_1_valid <= data_in_0_valid && data_in_1_valid && !rst;
    end
endmodule
"""


def check_a_circuit_without_handshakes(folder):
    ins = tuple(Port(f"data_in_{i}", f"x{i}", (1,), 4, False, 1) for i in (0, 1))
    outs = tuple(Port(f"data_out_{i}", f"y{i}", (1,), 5 - i, False, 1) for i in (0, 1))
    circuit = Circuit("pair", "unrolled", "verilog", {"pair.sv": PAIR}, ins, outs, 3.333, 1)
    made = HardwareProject.at(folder)
    circuit.write(made.hardware)
    a, b = (torch.randint(0, 16, (50, 1)) for _ in range(2))
    write_bench(circuit, [a, b], [a + b, b], made)
    result = run_bench(made, waves=False)
    assert result.passed
    assert (result.tests, result.mismatches) == (2, (0, 0))


@pytest.mark.rtl
def test_codes_are_compared_one_by_one_whatever_the_paths_are_called(
    tmp_path, package, monkeypatch
):
    package("cocotb")
    folder = tmp_path / "my project"
    assert run_bench(project(folder), skip_test=True) is None
    result = run_bench(project(folder), skip_build=True)
    assert result.passed
    assert (result.tests, result.samples, result.mismatches) == (2, (6, 6), (0, 0))
    assert result.cycles[0] < result.cycles[1]  # the second has pauses
    assert "$enddefinitions" in result.waves.read_text()

    wrong = Y.clone()
    wrong[4, 3] += 1
    result = run_bench(project(folder, wrong), skip_build=True, waves=False)
    assert not result.passed
    assert (result.mismatches, result.waves) == ((1, 1), None)
    assert "data_out_0, sample 4, beat 1: [" in result.failures[0]

    # what is in the unused lane of the last beat does not matter; a circuit that hangs is told
    result = run_bench(project(folder, wait_time=20, wait_unit="ns"), skip_build=True)
    assert "TimeoutError" in result.log.read_text()
    assert not result.passed
    check_a_circuit_without_handshakes(folder)  # here, as the runtime of Verilator is built

    # its program finds its libraries in the environment that it was built in
    (tmp_path / "environment" / "cocotb").mkdir(parents=True)
    (tmp_path / "environment" / "cocotb" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "environment")
    monkeypatch.delitem(sys.modules, "cocotb")
    with pytest.raises(FileNotFoundError, match="has no program for this circuit"):
        run_bench(project(folder), skip_build=True)


@pytest.mark.rtl
def test_a_circuit_that_verilator_refuses_is_one_sentence_and_keeps_the_log(
    tmp_path, package, private_cache
):
    package("cocotb")
    made = project(tmp_path)
    (made.rtl / "adder.sv").write_text(ADDER.replace("4'd1", "missing"))
    with pytest.raises(ToolError, match=r"cocotb failed: .*missing.*; its output is in"):
        run_bench(made)
    assert not [*(private_cache / "simulators").glob("cocotb-*")]
