"""Emitted circuits: names, files, equal bytes; in Verilator, what the integer graph computes."""

import io
import os
import re
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

from chop.hardware.names import KEYWORDS
from chop.hardware.simulation import check_circuit, lint_circuit
from chop.hardware.unrolled import circuit as emitting
from chop.hardware.unrolled import layers_of, logic, unrolled_circuit
from chop.hardware.unrolled.limits import adder_estimate
from chop.hardware.unrolled.ops import weighted
from chop.hardware.unrolled.progress import on_adders
from chop.integers import AddCodes, ConstantCodes, LinearCodes, ReshapeCodes, Scale

from .graphs import Residual, of_input, perceptron, quantised

pytestmark = pytest.mark.rtl
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from graphs import perceptron
from chop.hardware.unrolled import unrolled_circuit
for language in ("verilog", "vhdl"):
    print(unrolled_circuit(perceptron([12, 10, 4]), language=language).digest)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hardware") / "sim"


def checked(graph, circuit, folder, count=300):
    """Lint a circuit, run it, and return the check."""
    lint_circuit(circuit, folder)
    shape = graph.codes(circuit.inputs[0].value).shape
    result = check_circuit(graph, circuit, [2 * torch.randn(count, *shape)], folder=folder)
    assert result.mismatches == 0
    assert result.simulation.latency == circuit.latency
    assert result.simulation.interval == 1
    return result


def test_equal_designs_give_equal_bytes_in_every_process(tmp_path, monkeypatch):
    monkeypatch.setenv("MASE_CACHE", str(tmp_path / "of the other process"))
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, os.path.dirname(__file__)],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    monkeypatch.setenv("MASE_CACHE", str(tmp_path / "of this process"))
    logic.forget_logic()
    for language, digest in zip(("verilog", "vhdl"), run.stdout.split(), strict=True):
        assert unrolled_circuit(perceptron([12, 10, 4]), language=language).digest == digest


def test_a_bar_on_a_terminal_shows_the_layers_and_their_adders(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown, hidden, log = Terminal(), Terminal(), io.StringIO()
    for stream, progress in ((shown, True), (hidden, False), (log, True)):
        monkeypatch.setattr(sys, "stderr", stream)
        unrolled_circuit(perceptron([12, 10, 4]), progress=progress)
    last = shown.getvalue().split("\r")[-1]
    assert last.startswith("Emitting: 100%")
    assert "fc2, layer 2 of 2" in last
    assert hidden.getvalue() == log.getvalue() == ""


def test_a_large_layer_is_solved_in_parts_that_the_bar_shows(folder, monkeypatch):
    graph = perceptron([24, 20, 4])
    whole = unrolled_circuit(graph)
    logic.forget_logic()
    monkeypatch.setattr(logic, "_from_disk", lambda *_: None)  # the key does not know MAX_WORK
    monkeypatch.setattr(logic, "write_entry", lambda *_: None)
    monkeypatch.setattr(weighted, "MAX_WORK", 24 * 200**2)  # 200 of about 800 powers of two
    matrices, shown = [], []
    solve = weighted.Solver._solve
    monkeypatch.setattr(
        weighted.Solver, "_solve", lambda *told: (matrices.append(told[1].shape), solve(*told))[1]
    )
    monkeypatch.setattr(
        emitting, "on_adders", lambda add: on_adders(lambda n: (shown.append(n), add(n)))
    )
    parts = unrolled_circuit(graph)
    logic.forget_logic()
    assert len(matrices) > 3
    assert sum(columns for _, columns in matrices) == 20 + 4
    total = sum(adder_estimate(graph, layer) for layer in layers_of(graph))
    assert 0.9 * total < sum(shown) <= total  # the rest are additions of roundings
    assert parts.digest != whole.digest
    checked(graph, parts, folder)


def test_files_name_no_place_and_no_time():
    text = "".join(unrolled_circuit(perceptron([4, 3])).files.values())
    assert os.path.expanduser("~") not in text
    assert not re.search(r"\b20\d\d-\d\d|/usr/|/tmp/|/home/", text)


def test_a_perceptron_of_five_layers(folder):
    sizes = [16, 64, 32, 32, 5]
    layers = [x for pair in pairwise(sizes) for x in (nn.Linear(*pair), nn.ReLU())]
    graph = quantised(nn.Sequential(*layers[:-1]), (16,), weight_width=3, weight_frac_width=2)
    circuit = unrolled_circuit(graph)
    assert list(circuit.layers) == [f"_{i}" for i in range(7)]
    checked(graph, circuit, folder)


def test_a_convolutional_network(folder):
    layers = [nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(2)]
    layers += [nn.Conv2d(2, 2, 2), nn.Sigmoid(), nn.AvgPool2d(2, 1), nn.Flatten(), nn.Linear(2, 3)]
    graph = quantised(nn.Sequential(*layers), (1, 6, 6)).with_argmax()
    checked(graph, unrolled_circuit(graph, clock_period=3.0), folder)


def test_a_skip_waits_in_registers_and_all_results_come_together(folder):
    graph = quantised(Residual(), (6,))
    circuit = unrolled_circuit(graph)
    assert [port.name for port in circuit.outputs] == ["data_out_0", "data_out_1"]
    assert "_after_" in circuit.files["top.sv"]
    checked(graph, circuit, folder)


def test_nodes_named_as_keywords_ports_and_modules_of_alkaid(folder):
    names = ["module", "data_in_0", "mux", "1.weird name", "shift_adder", "Mux", "top", "clk"]
    graph = perceptron([2] * (len(names) + 1), names)
    circuit = unrolled_circuit(graph)
    modules = {circuit.layers[name] for name in names}
    assert len({name.lower() for name in modules}) == len(names)
    assert not {name.lower() for name in modules} & {*KEYWORDS, "mux", "shift_adder", "top"}
    checked(graph, circuit, folder, count=50)


def test_wires_and_constants(folder):
    graph = of_input(3, (2, 2))
    moved = graph.add("moved", ReshapeCodes((4,)), ["x_codes"], "moved")
    nothing = LinearCodes(torch.zeros(2, 4, dtype=torch.int64), None, Scale.power(0), 2)
    zeros = graph.add("zeros", nothing, ["moved"], "zeros")
    fixed = graph.add("fixed", ConstantCodes(torch.tensor([5, -3]), Scale.power(0)), [], "fixed")
    total = graph.add("total", AddCodes(), [zeros, fixed], "total")
    graph.outputs += [moved, zeros, total, "x_codes"]
    circuit = unrolled_circuit(graph)
    assert circuit.latency == 1
    checked(graph, circuit, folder, count=20)


def test_layers_of_one_module_each_and_only_what_they_need():
    graph = perceptron([4, 4, 3])
    circuit = unrolled_circuit(graph)
    assert set(circuit.layers.values()) == {layer.name for layer in layers_of(graph)}
    assert {"fc1.sv", "fc2.sv", "top.sv"} < circuit.files.keys()
    assert "multiplier.v" not in circuit.files
    vhdl = unrolled_circuit(graph, language="vhdl")
    assert {"fc1.vhd", "fc2.vhd", "top.vhd"} < vhdl.files.keys()
    assert list(vhdl.files)[-1] == "top.vhd"
    assert (vhdl.latency, vhdl.layers) == (circuit.latency, circuit.layers)
