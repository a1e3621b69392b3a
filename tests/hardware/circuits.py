"""Small circuits that are written by hand, for tests of the simulation."""

from chop.hardware.circuit import Circuit, Port

ADDER = """\
module top (
    input logic clk, input logic rst,
    input logic [7:0] data_in_0, input logic data_in_0_valid,
    output logic [4:0] data_out_0, output logic data_out_0_valid
);
  logic [4:0] sum;
  logic valid;
  always_ff @(posedge clk) begin
    sum <= {data_in_0[3], data_in_0[3:0]} + {data_in_0[7], data_in_0[7:4]};
    data_out_0 <= sum;
    valid <= data_in_0_valid & ~rst;
    data_out_0_valid <= valid & ~rst;
  end
endmodule
"""

# doubles each code; READY says when the register takes a new one
REGISTER = """\
module top (
    input logic clk, input logic rst,
    input logic [7:0] data_in_0, input logic data_in_0_valid, output logic data_in_0_ready,
    output logic [8:0] data_out_0, output logic data_out_0_valid, input logic data_out_0_ready
);
  assign data_in_0_ready = READY;
  always_ff @(posedge clk) begin
    if (rst) data_out_0_valid <= 1'b0;
    else if (data_in_0_ready) data_out_0_valid <= data_in_0_valid;
    if (data_in_0_ready) data_out_0 <= {data_in_0, 1'b0};
  end
endmodule
"""


def adder(**more):
    """A circuit that adds two numbers of four bits, in two cycles."""
    ports = (
        (Port("data_in_0", "x", (2,), 4, True, 2),),
        (Port("data_out_0", "y", (1,), 5, True, 1),),
    )
    values = {"files": {"top.sv": ADDER}, "clock_period": 5.0, "latency": 2, **more}
    return Circuit("top", "unrolled", "verilog", inputs=ports[0], outputs=ports[1], **values)


def register(ready="!data_out_0_valid || data_out_0_ready", size=3):
    """A circuit with handshakes that doubles `size` numbers per sample."""
    files = {"top.sv": REGISTER.replace("READY", ready)}
    ports = (
        (Port("data_in_0", "x", (size,), 8, True, 1),),
        (Port("data_out_0", "y", (size,), 9, True, 1),),
    )
    return Circuit("top", "streaming", "verilog", files, *ports, 5.0, size, interval=size)
