"""The place of the largest code of a vector."""

from __future__ import annotations

import numpy as np

from chop.hardware.streaming.component import StreamComponent, component
from chop.hardware.streaming.stream import Places, Stream, in_lanes
from chop.integers import ArgMaxCodes, IntegerNode


@component(ArgMaxCodes)
class ArgMaxComponent(StreamComponent):
    """Compares the largest code of each beat with the largest so far."""

    module = "fixed_argmax"
    delay = 2
    template = """\
// The first place of the largest code of a vector of SIZE codes
module fixed_argmax #(
    parameter int LANES = 1,
    parameter int IN_WIDTH = 8,
    parameter int IN_SIGNED = 1,
    parameter int OUT_WIDTH = 4,
    parameter int SIZE = 10,
    parameter int BEATS = 10
) (
    input  logic clk,
    input  logic rst,
    input  logic [LANES*IN_WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic [OUT_WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    localparam int PLACE_BITS = $clog2(SIZE + LANES + 1);
    localparam int BEAT_BITS = BEATS > 1 ? $clog2(BEATS) : 1;

    // entry i is the best of what came before and of the lanes below i
    logic [(LANES+1)*(IN_WIDTH+1)-1:0] codes;
    logic [(LANES+1)*PLACE_BITS-1:0] places;
    logic signed [IN_WIDTH:0] best;
    logic [PLACE_BITS-1:0] best_place;
    logic [PLACE_BITS-1:0] base;
    logic [BEAT_BITS-1:0] beat;
    logic last;
    logic done;
    logic step;
    logic ready;

    assign step = !done || ready;
    assign data_in_0_ready = step;
    assign last = beat == BEAT_BITS'(BEATS - 1);
    assign codes[IN_WIDTH:0] = best;
    assign places[PLACE_BITS-1:0] = best_place;

    for (genvar i = 0; i < LANES; i++) begin : lane
        logic [IN_WIDTH-1:0] code;
        logic signed [IN_WIDTH:0] x;
        logic signed [IN_WIDTH:0] y;
        logic wins;
        assign code = data_in_0[i*IN_WIDTH +: IN_WIDTH];
        assign x = {IN_SIGNED != 0 && code[IN_WIDTH-1], code};
        assign y = codes[i*(IN_WIDTH+1) +: IN_WIDTH+1];
        if (i == 0) begin : first
            assign wins = x > y || beat == '0;
        end else begin : other
            // lanes after the last code do not count
            assign wins = x > y && base + PLACE_BITS'(i) < PLACE_BITS'(SIZE);
        end
        assign codes[(i+1)*(IN_WIDTH+1) +: IN_WIDTH+1] = wins ? x : y;
        assign places[(i+1)*PLACE_BITS +: PLACE_BITS]
            = wins ? base + PLACE_BITS'(i) : places[i*PLACE_BITS +: PLACE_BITS];
    end

    always_ff @(posedge clk) begin
        if (step) begin
            done <= data_in_0_valid && last;
            if (data_in_0_valid) begin
                best <= codes[LANES*(IN_WIDTH+1) +: IN_WIDTH+1];
                best_place <= places[LANES*PLACE_BITS +: PLACE_BITS];
                beat <= last ? '0 : beat + 1'b1;
                base <= last ? '0 : base + PLACE_BITS'(LANES);
            end
        end
        if (rst) begin
            done <= 1'b0;
            beat <= '0;
            base <= '0;
        end
    end

    stream_register #(.WIDTH(OUT_WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(OUT_WIDTH'(best_place)), .data_in_0_valid(done), .data_in_0_ready(ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
"""

    @classmethod
    def refusal(cls, node: IntegerNode) -> str | None:
        whole = node.codes.shape in ((), (1,))
        return None if whole else "has more than one result; only that of a whole vector is built"

    @classmethod
    def accepts(cls, node: IntegerNode, inputs: tuple[Stream, ...]) -> tuple[Stream, ...]:
        (stream,) = inputs
        places = np.arange(stream.size)
        if np.array_equal(stream.slots, in_lanes(places, stream.lanes)):
            return inputs
        return (stream.moved(in_lanes(places, 1)),)

    @property
    def output(self) -> Stream:
        return Stream(self.node.codes, np.zeros((1, 1), np.int64))

    def parameters(self) -> dict[str, int]:
        return {
            "LANES": self.input.lanes,
            "IN_WIDTH": self.input.width,
            "IN_SIGNED": int(self.input.signed),
            "OUT_WIDTH": self.output.width,
            "SIZE": self.input.size,
            "BEATS": self.input.beats,
        }

    def needed(self, index: int = 0) -> Places:
        return np.array([self.input.beats])
