"""A circuit, and a netlist as yosys writes it."""

from chop.hardware.circuit import Circuit, Port

ADDER = """\
module fc1 (input clk, input [3:0] a, input [3:0] b, output reg [3:0] y);
  always @(posedge clk) y <= a + b;
endmodule
module top (
  input clk, input rst, input [7:0] data_in_0, input data_in_0_valid,
  output [3:0] data_out_0, output reg data_out_0_valid
);
  fc1 i_fc1 (.clk(clk), .a(data_in_0[3:0]), .b(data_in_0[7:4]), .y(data_out_0));
  always @(posedge clk) data_out_0_valid <= data_in_0_valid & ~rst;
endmodule
"""


def circuit(files, **more):
    inputs = (Port("data_in_0", "x", (2,), 4, True, 2),)
    outputs = (Port("data_out_0", "y", (1,), 4, True, 1),)
    values = {"clock_period": 5.0, "latency": 1, **more}
    return Circuit("top", "unrolled", "verilog", files, inputs, outputs, **values)


def cell(kind, directions, **pins):
    """A cell as yosys writes it; `directions` names the outputs."""
    ways = {pin: "output" if pin in directions.split() else "input" for pin in pins}
    return {"type": kind, "port_directions": ways, "connections": pins}


LUT = cell("LUT2", "O", I0=[2], I1=[3], O=[5])
NETLIST = {
    "modules": {
        "LUT2": {"attributes": {"blackbox": "1"}, "ports": {}, "cells": {}},
        "fc1": {
            "attributes": {},
            "ports": {name: {"bits": [net]} for name, net in zip("aby", (2, 3, 4), strict=True)},
            "cells": {"l": LUT, "f": cell("FDRE", "Q", C=["0"], D=[5], Q=[4])},
        },
        "top": {
            "attributes": {"top": "1"},
            "ports": {"clk": {"direction": "input", "bits": [9]}},
            "netnames": {},
            "cells": {
                "i_fc1": cell("fc1", "y", a=[10], b=[11], y=[12]),
                "f": cell("FDRE", "Q", C=["0"], D=[12], Q=[13]),
            },
        },
    }
}
