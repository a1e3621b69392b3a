"""Yosys and nextpnr on tiny circuits."""

import importlib.util
import shutil

import pytest
import torch
from torch import nn

from chop.hardware.synthesis import programs, synthesize_circuit

from .netlists import circuit

pytestmark = pytest.mark.rtl

MEMORY = """\
module rom (input clk, input [9:0] address, output reg [15:0] word);
  reg [15:0] words [0:1023];
  initial $readmemh("rom.dat", words);
  always @(posedge clk) word <= words[address];
endmodule
module scale #(parameter WIDTH = 2) (
  input clk, input signed [WIDTH-1:0] a, input signed [WIDTH-1:0] b, output reg [2*WIDTH-1:0] y
);
  always @(posedge clk) y <= a * b;
endmodule
module top (input clk, input [9:0] data_in_0, output [31:0] data_out_0);
  wire [15:0] word;
  rom i_rom (.clk(clk), .address(data_in_0), .word(word));
  scale #(.WIDTH(16)) i_scale (.clk(clk), .a(word), .b(word), .y(data_out_0));
endmodule
"""


def test_an_adder_takes_one_lut_per_bit(adder, tmp_path):
    result = synthesize_circuit(adder, folder=tmp_path / "a path")
    layer = result.layers["fc1"]
    assert (layer.luts, layer.packed_luts, layer.ffs, layer.carries) == (4, 4, 4, 1)
    assert layer.depth == 2
    assert result.other.ffs == 1


@pytest.mark.skipif(not shutil.which("yosys"), reason="there is no native yosys")
def test_a_native_yosys_and_the_wheel_agree_on_an_adder(adder, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_wheel", lambda *names: None)
    result = synthesize_circuit(adder, folder=tmp_path)
    assert (result.layers["fc1"].packed_luts, result.layers["fc1"].ffs) == (4, 4)


def test_memories_and_multipliers_are_those_of_their_layer(tmp_path):
    words = "".join(f"{(i * 2654435761) % 65536:04x}\n" for i in range(1024))
    layers = {"weights": "rom", "scale": "scale"}
    memory = circuit({"top.sv": MEMORY, "rom.dat": words}, layers=layers)
    result = synthesize_circuit(memory, folder=tmp_path)
    assert (result.layers["weights"].brams, result.layers["weights"].dsps) == (0.5, 0)
    assert (result.layers["scale"].brams, result.layers["scale"].dsps) == (0, 1)
    assert result.luts == 0


def test_a_source_that_is_not_verilog_is_told_with_its_line(tmp_path):
    with pytest.raises(OSError, match=r"yosys failed: top\.sv:2: ERROR: .*; its output is in") as e:
        synthesize_circuit(circuit({"top.sv": "module top;\n  wire 1;\n"}), folder=tmp_path)
    assert "\n" not in str(e.value)


@pytest.mark.skipif(importlib.util.find_spec("alkaid") is None, reason="needs alkaid")
def test_an_unrolled_network_has_a_row_per_layer_and_a_clock_rate(tmp_path):
    from chop.hardware.unrolled import unrolled_circuit

    network = unrolled_circuit(integers(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))))
    result = synthesize_circuit(network, folder=tmp_path, target="ecp5", place=True)
    assert list(result.layers) == ["_0", "_2"]
    assert all(layer.luts and layer.ffs for layer in result.layers.values())
    assert result.placement is not None
    assert result.placement.device == "LFE5U-25F"
    assert 20 < result.placement.clock_mhz < 1000
    ports = sum(port.bits + 1 for port in (*network.inputs, *network.outputs))
    assert result.placement.utilization["TRELLIS_FF"][0] == result.ffs + ports + 1  # the reset


def integers(model):
    from chop.ir import MaseGraph
    from chop.passes import Pipeline

    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.uniform_(parameter)
    widths = {"data_in": (4, 2), "weight": (3, 2), "bias": (3, 2)}
    config = {f"{name}_width": width for name, (width, _) in widths.items()}
    config |= {f"{name}_frac_width": fraction for name, (_, fraction) in widths.items()}
    prepare = Pipeline(
        [
            "init_metadata",
            ("add_common_metadata", {"dummy_in": {"input": torch.randn(2, 4)}}),
            ("quantize", {"by": "type", "linear": {"config": {"name": "integer", **config}}}),
        ]
    )
    return prepare(MaseGraph(model.eval()))[0].to_integers()


def test_the_layers_of_a_streaming_network_have_their_memories(tmp_path):
    from chop.hardware.streaming import streaming_circuit

    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    result = synthesize_circuit(streaming_circuit(integers(model)), folder=tmp_path)
    assert list(result.layers) == ["_0", "_1", "_2"]
    assert all(layer.ffs for layer in result.layers.values())
    assert result.other.luts <= 0.1 * result.luts
