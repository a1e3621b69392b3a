"""Circuits in VHDL, run in GHDL: what the integer graph computes, one result per clock."""

import shutil
import subprocess

import numpy as np
import pytest
import torch
from torch import nn

from chop.hardware.unrolled import unrolled_circuit
from chop.integers.ops.requantize import QuantizeInput

from .graphs import Residual, perceptron, quantised

GHDL = shutil.which("ghdl")
pytestmark = [
    pytest.mark.rtl,
    pytest.mark.skipif(GHDL is None, reason="needs GHDL (on Debian and Ubuntu: apt install ghdl)"),
]
BENCH = """\
library ieee;
use ieee.std_logic_1164.all;
use std.textio.all;
use std.env.all;

entity bench is end entity;

architecture test of bench is
    signal clk : std_logic := '0';
    signal rst : std_logic := '1';
    signal valid : std_logic := '0';
@SIGNALS@
begin
    clk <= not clk after 1 ns;
    dut : entity work.top port map (clk => clk, rst => rst, @PORTS@);

    process
        file sent : text open read_mode is "sent.txt";
        variable row : line;
@VARIABLES@
    begin
        wait until falling_edge(clk);
        wait until falling_edge(clk);
        rst <= '0';
        while not endfile(sent) loop
            readline(sent, row);
@READ@
            valid <= '1';
            wait until falling_edge(clk);
        end loop;
        valid <= '0';
        for i in 0 to @LATENCY@ loop
            wait until falling_edge(clk);
        end loop;
        stop;
    end process;

    process (clk)
        file taken : text open write_mode is "taken.txt";
        variable row : line;
        variable cycles : integer := 0;
    begin
        if rising_edge(clk) then
            if valid = '1' or cycles > 0 then
                cycles := cycles + 1;
            end if;
            if data_out_0_valid = '1' then
                write(row, cycles - 1);
@WRITE@
                writeline(taken, row);
            end if;
        end if;
    end process;
end architecture;
"""


def bench(circuit):
    """A test bench that reads samples from a file, and writes the cycle and bits of each result."""
    ports = (*circuit.inputs, *circuit.outputs)
    vector = "std_logic_vector({} downto 0)"
    signals = [f"    signal {p.name} : {vector.format(p.bits - 1)};" for p in ports]
    signals += [f"    signal {p.name}_valid : std_logic;" for p in circuit.outputs]
    connected = [f"{p.name} => {p.name}" for p in ports]
    connected += [f"{p.name}_valid => valid" for p in circuit.inputs]
    connected += [f"{p.name}_valid => {p.name}_valid" for p in circuit.outputs]
    parts = {
        "SIGNALS": signals,
        "PORTS": [", ".join(connected)],
        "VARIABLES": [f"variable {p.name}_row : {vector.format(p.bits - 1)};" for p in ports],
        "READ": [f"read(row, {p.name}_row); {p.name} <= {p.name}_row;" for p in circuit.inputs],
        "LATENCY": [str(circuit.latency + 2)],
        "WRITE": [f"write(row, ' '); write(row, {p.name});" for p in circuit.outputs],
    }
    text = BENCH
    for name, lines in parts.items():
        text = text.replace(f"@{name}@", "\n".join(lines))
    return text


def as_bits(port, codes):
    """Each sample of a port as digits, the highest bit first."""
    words = port.to_beats(codes)[:, 0]
    numbers = [sum(int(word) << (32 * i) for i, word in enumerate(row)) for row in words]
    return [f"{number:0{port.bits}b}" for number in numbers]


def as_codes(port, rows):
    words = [[int(row, 2) >> (32 * i) & 0xFFFFFFFF for i in range(port.words)] for row in rows]
    return port.from_beats(np.array(words, dtype=np.uint32)[:, None])


def simulated(circuit, sent, folder):
    """Run a circuit; return the codes of its outputs, and the cycle of each result."""
    for name, text in {**circuit.files, "bench.vhd": bench(circuit)}.items():
        (folder / name).write_text(text)
    columns = [as_bits(port, sent[port.value]) for port in circuit.inputs]
    lines = [" ".join(row) for row in zip(*columns, strict=True)]
    (folder / "sent.txt").write_text("\n".join(lines) + "\n")
    sources = [*circuit.files, "bench.vhd"]
    for step in (["-a", "--std=08", *sources], ["--elab-run", "--std=08", "bench"]):
        done = subprocess.run([GHDL, *step], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in (folder / "taken.txt").read_text().splitlines()]
    ports = enumerate(circuit.outputs, 1)
    return [as_codes(port, [row[i] for row in rows]) for i, port in ports], [
        int(r[0]) for r in rows
    ]


def convolutional():
    layers = [nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(2)]
    layers += [nn.Conv2d(2, 2, 2), nn.Sigmoid(), nn.AvgPool2d(2, 1), nn.Flatten(), nn.Linear(2, 3)]
    return quantised(nn.Sequential(*layers), (1, 6, 6)).with_argmax()


NAMES = ["entity", "data_in_0", "signal", "1.weird name", "shift_adder", "Mux", "top", "clk"]
GRAPHS = {
    "perceptron": lambda: perceptron([16, 12, 5]),
    "convolutional": convolutional,
    "residual": lambda: quantised(Residual(), (6,)),
    "keywords": lambda: perceptron([2] * (len(NAMES) + 1), NAMES),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_circuit_in_vhdl_computes_what_the_integer_graph_does(name, tmp_path):
    torch.manual_seed(0)
    graph = GRAPHS[name]()
    circuit = unrolled_circuit(graph, language="vhdl")
    (port,) = circuit.inputs
    x = 8 * torch.randn(200, *port.shape)
    quantize = graph.nodes[port.value].op
    assert isinstance(quantize, QuantizeInput)
    results, cycles = simulated(circuit, {port.value: quantize.run(x)}, tmp_path)
    expected = graph.run(x)
    for ours, theirs in zip(
        expected if isinstance(expected, tuple) else (expected,), results, strict=True
    ):
        assert torch.equal(ours, theirs)
    assert cycles == list(range(circuit.latency, circuit.latency + len(x)))
