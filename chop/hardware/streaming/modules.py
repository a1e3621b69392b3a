"""Modules that components are made of: registers, forks, FIFOs, and adder trees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

__all__ = ["PLUMBING", "module_of", "needed_modules"]

REGISTER = """\
// A register between two components: valid, ready and data come from flip-flops on both sides.
// It keeps a second beat for the clock cycle in which the sender does not know yet of a stall.
module stream_register #(
    parameter int WIDTH = 8
) (
    input  logic clk,
    input  logic rst,
    input  logic [WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic [WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    logic [WIDTH-1:0] spare;
    logic spare_valid;

    assign data_in_0_ready = !spare_valid;

    always_ff @(posedge clk) begin
        if (data_out_0_ready || !data_out_0_valid) begin
            data_out_0 <= spare_valid ? spare : data_in_0;
            data_out_0_valid <= spare_valid || data_in_0_valid;
            spare_valid <= 1'b0;
        end else if (data_in_0_valid && !spare_valid) begin
            spare_valid <= 1'b1;
        end
        if (!spare_valid) spare <= data_in_0;
        if (rst) begin
            data_out_0_valid <= 1'b0;
            spare_valid <= 1'b0;
        end
    end
endmodule
"""

FORK = """\
// One stream to several receivers, each at its own pace; the next beat follows when all have it.
module stream_fork #(
    parameter int WIDTH = 8,
    parameter int COUNT = 2
) (
    input  logic clk,
    input  logic rst,
    input  logic [WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic [COUNT*WIDTH-1:0] data_out_0,
    output logic [COUNT-1:0] data_out_0_valid,
    input  logic [COUNT-1:0] data_out_0_ready
);
    logic [COUNT-1:0] taken;
    logic [COUNT-1:0] received;

    assign received = taken | data_out_0_ready;
    assign data_in_0_ready = &received;
    assign data_out_0 = {COUNT{data_in_0}};
    assign data_out_0_valid = {COUNT{data_in_0_valid}} & ~taken;

    always_ff @(posedge clk) begin
        if (data_in_0_valid) taken <= data_in_0_ready ? '0 : received;
        if (rst) taken <= '0;
    end
endmodule
"""

FIFO = """\
// A queue of DEPTH beats, for the branch that waits until the other one has its first results.
module stream_fifo #(
    parameter int WIDTH = 8,
    parameter int DEPTH = 4,
    parameter int ADDRESS_WIDTH = 2
) (
    input  logic clk,
    input  logic rst,
    input  logic [WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic [WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    logic [WIDTH-1:0] queue [0:DEPTH-1];
    logic [ADDRESS_WIDTH-1:0] head;
    logic [ADDRESS_WIDTH-1:0] tail;
    logic [ADDRESS_WIDTH:0] count;
    logic write;
    logic read;

    assign data_in_0_ready = count != (ADDRESS_WIDTH + 1)'(DEPTH);
    assign write = data_in_0_valid && data_in_0_ready;
    assign read = count != '0 && (data_out_0_ready || !data_out_0_valid);

    always_ff @(posedge clk) begin
        if (write) queue[tail] <= data_in_0;
        if (read) data_out_0 <= queue[head];
    end

    always_ff @(posedge clk) begin
        if (write) tail <= tail == ADDRESS_WIDTH'(DEPTH - 1) ? '0 : tail + 1'b1;
        if (read) head <= head == ADDRESS_WIDTH'(DEPTH - 1) ? '0 : head + 1'b1;
        if (write && !read) count <= count + 1'b1;
        if (read && !write) count <= count - 1'b1;
        if (data_out_0_ready || !data_out_0_valid) data_out_0_valid <= read;
        if (rst) begin
            head <= '0;
            tail <= '0;
            count <= '0;
            data_out_0_valid <= 1'b0;
        end
    end
endmodule
"""

TREE = """\
// The sum of 2^LEVELS terms, with a register after each level of additions.
module fixed_adder_tree #(
    parameter int LEVELS = 2,
    parameter int WIDTH = 16
) (
    input  logic clk,
    input  logic enable,
    input  logic [(2**LEVELS)*WIDTH-1:0] terms,
    output logic [WIDTH-1:0] sum
);
    // node i is the sum of nodes 2 i and 2 i + 1; the last half are the terms
    logic [(2**(LEVELS+1))*WIDTH-1:WIDTH] nodes;

    assign nodes[(2**LEVELS)*WIDTH +: (2**LEVELS)*WIDTH] = terms;
    assign sum = nodes[WIDTH +: WIDTH];

    for (genvar i = 1; i < 2**LEVELS; i++) begin : add
        always_ff @(posedge clk)
            if (enable)
                nodes[i*WIDTH +: WIDTH]
                    <= nodes[2*i*WIDTH +: WIDTH] + nodes[(2*i+1)*WIDTH +: WIDTH];
    end
endmodule
"""

NARROW = """\
// Beats of PARTS · WIDTH bits as PARTS beats of WIDTH bits.
module stream_narrow #(
    parameter int WIDTH = 8,
    parameter int PARTS = 2
) (
    input  logic clk,
    input  logic rst,
    input  logic [PARTS*WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic [WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    localparam int COUNT_BITS = $clog2(PARTS + 1);

    logic [PARTS*WIDTH-1:0] rest;
    logic [COUNT_BITS-1:0] count;

    assign data_in_0_ready = count == '0 || (count == COUNT_BITS'(1) && data_out_0_ready);
    assign data_out_0_valid = count != '0;
    assign data_out_0 = rest[WIDTH-1:0];

    always_ff @(posedge clk) begin
        if (data_in_0_valid && data_in_0_ready) begin
            rest <= data_in_0;
            count <= COUNT_BITS'(PARTS);
        end else if (data_out_0_valid && data_out_0_ready) begin
            rest <= rest >> WIDTH;
            count <= count - 1'b1;
        end
        if (rst) count <= '0;
    end
endmodule
"""

REDUCE = """\
// The largest of several codes, or their sum, in each lane.
module fixed_reduce #(
    parameter int LANES = 1,
    parameter int WIDTH = 8,
    parameter int TERMS = 2,
    parameter int IS_SIGNED = 1,
    parameter int IS_SUM = 0
) (
    input  logic [TERMS*LANES*WIDTH-1:0] terms,
    output logic [LANES*WIDTH-1:0] result
);
    for (genvar i = 0; i < LANES; i++) begin : lane
        // partial[t] is the result of terms 0 to t
        logic [TERMS*WIDTH-1:0] partial;
        assign partial[WIDTH-1:0] = terms[i*WIDTH +: WIDTH];
        for (genvar t = 1; t < TERMS; t++) begin : term
            logic [WIDTH-1:0] x;
            logic [WIDTH-1:0] y;
            assign x = partial[(t-1)*WIDTH +: WIDTH];
            assign y = terms[(t*LANES+i)*WIDTH +: WIDTH];
            if (IS_SUM != 0) begin : sum
                assign partial[t*WIDTH +: WIDTH] = x + y;
            end else if (IS_SIGNED != 0) begin : signed_maximum
                assign partial[t*WIDTH +: WIDTH] = $signed(x) > $signed(y) ? x : y;
            end else begin : maximum
                assign partial[t*WIDTH +: WIDTH] = x > y ? x : y;
            end
        end
        assign result[i*WIDTH +: WIDTH] = partial[(TERMS-1)*WIDTH +: WIDTH];
    end
endmodule
"""

SATURATE = """\
// min(max(x, LOW), HIGH). A bound may be far beyond the range of x or of the result, as those of
// formats with a zero point are, so both are compared with all their bits.
module fixed_saturate #(
    parameter int IN_WIDTH = 9,
    parameter int OUT_WIDTH = 8,
    parameter logic signed [63:0] LOW = -64'sd128,
    parameter logic signed [63:0] HIGH = 64'sd127
) (
    input  logic signed [IN_WIDTH-1:0] x,
    output logic [OUT_WIDTH-1:0] result
);
    localparam int WIDTH = IN_WIDTH > 64 ? IN_WIDTH : 64;

    logic signed [WIDTH-1:0] wide;

    assign wide = WIDTH'(x);
    assign result = wide < WIDTH'(LOW) ? OUT_WIDTH'(LOW)
        : wide > WIDTH'(HIGH) ? OUT_WIDTH'(HIGH) : OUT_WIDTH'(wide);
endmodule
"""

PLUMBING = (REGISTER, FORK, FIFO, TREE, NARROW, REDUCE, SATURATE)


def module_of(text: str) -> str:
    """Return the name of the module that a text defines."""
    names: list[str] = re.findall(r"^module (\w+)", text, re.MULTILINE)
    return names[-1]


def needed_modules(names: Iterable[str], library: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of modules and of those that they instantiate, by name."""
    texts: dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        texts[name] = library[name]
        used = re.findall(r"^ *(\w+) *#\(", library[name], re.MULTILINE)
        waiting += [n for n in used if n in library and n not in texts]
    return dict(sorted(texts.items()))
