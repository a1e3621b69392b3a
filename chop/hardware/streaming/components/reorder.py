"""Codes in another order, and with other lanes: two memories for a sample each."""

from __future__ import annotations

import numpy as np

from chop.hardware.streaming.component import Budget, Stage, StreamComponent, StreamCost
from chop.hardware.streaming.memory import Memory, address_bits
from chop.hardware.streaming.modules import NARROW
from chop.hardware.streaming.stream import FILLER, Places, Stream
from chop.integers import IntegerNode, ReshapeCodes


class MovedComponent(StreamComponent):
    """A component between two others, which changes the order or the lanes of a stream."""

    wanted: Places

    @classmethod
    def between(cls, name: str, given: Stream, wanted: Stream) -> MovedComponent:
        """Return the smallest component that makes the wanted stream of the given one."""
        same = np.array_equal(given.slots.reshape(-1), wanted.slots.reshape(-1))
        node = IntegerNode(name, ReshapeCodes(wanted.shape), (), wanted.codes, name, True)
        made = (NarrowComponent if same else ReorderComponent)(node, (given,), Budget(1))
        made.wanted = wanted.slots
        return made

    @property
    def output(self) -> Stream:
        return Stream(self.node.codes, self.wanted)


class NarrowComponent(MovedComponent):
    """Sends the codes of a beat in several beats of fewer lanes."""

    module = "stream_narrow"
    template = NARROW

    def parameters(self) -> dict[str, int]:
        parts = self.input.lanes // self.output.lanes
        return {"WIDTH": self.output.bits, "PARTS": parts}

    def needed(self, index: int = 0) -> Places:
        parts = self.input.lanes // self.output.lanes
        return np.repeat(np.arange(1, self.input.beats + 1), parts)


class ReorderComponent(MovedComponent):
    """Writes a sample code by code while it reads the one before in the other order."""

    module = "stream_reorder"
    template = """\
// The codes of a sample in another order, one per beat; place has the position of each. A sample
// is written into one half of the memory while the one before is read from the other.
module stream_reorder #(
    parameter int WIDTH = 8,
    parameter int IN_SIZE = 4,        // beats of a sample
    parameter int OUT_SIZE = 4,
    parameter int ADDRESS_WIDTH = 2,  // of IN_SIZE
    parameter int PLACE_ADDRESS = 2   // of OUT_SIZE
) (
    input  logic clk,
    input  logic rst,
    input  logic [WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic place_enable,
    output logic [PLACE_ADDRESS-1:0] place_address,
    input  logic [ADDRESS_WIDTH-1:0] place,
    output logic [WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    logic [WIDTH-1:0] memory [0:2**(ADDRESS_WIDTH+1)-1];
    logic [1:0] full;
    logic write_half;
    logic read_half;
    logic place_half;
    logic place_valid;
    logic place_last;
    logic [ADDRESS_WIDTH-1:0] position;
    logic write;
    logic issue;
    logic step;
    logic [WIDTH-1:0] code;
    logic code_valid;
    logic code_ready;

    assign data_in_0_ready = !full[write_half];
    assign write = data_in_0_valid && data_in_0_ready;
    assign step = !code_valid || code_ready;
    assign issue = full[read_half] && step;
    assign place_enable = step;

    always_ff @(posedge clk) begin
        if (write) memory[{write_half, position}] <= data_in_0;
        if (step) code <= memory[{place_half, place}];
    end

    always_ff @(posedge clk) begin
        if (write) begin
            position <= position == ADDRESS_WIDTH'(IN_SIZE - 1) ? '0 : position + 1'b1;
            if (position == ADDRESS_WIDTH'(IN_SIZE - 1)) begin
                full[write_half] <= 1'b1;
                write_half <= !write_half;
            end
        end
        if (step) begin
            place_valid <= issue;
            place_half <= read_half;
            place_last <= place_address == PLACE_ADDRESS'(OUT_SIZE - 1);
            code_valid <= place_valid;
        end
        if (issue) begin
            place_address <= place_address == PLACE_ADDRESS'(OUT_SIZE - 1)
                ? '0 : place_address + 1'b1;
            if (place_address == PLACE_ADDRESS'(OUT_SIZE - 1)) read_half <= !read_half;
        end
        if (step && place_valid && place_last) full[place_half] <= 1'b0;
        if (rst) begin
            full <= '0;
            write_half <= 1'b0;
            read_half <= 1'b0;
            position <= '0;
            place_address <= '0;
            place_valid <= 1'b0;
            code_valid <= 1'b0;
        end
    end

    stream_register #(.WIDTH(WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(code), .data_in_0_valid(code_valid), .data_in_0_ready(code_ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
"""
    delay = 3

    def stages(self) -> tuple[Stage, ...]:
        own = Stage(self.module, self.parameters(), self.memories())
        stream = self.input
        if stream.lanes == 1:
            return (own,)
        narrow = {"WIDTH": stream.width, "PARTS": stream.lanes}
        return (Stage("stream_narrow", narrow, suffix="_narrow", bits=stream.width), own)

    def memories(self) -> tuple[Memory, ...]:
        written = np.full(self.input.size, FILLER, np.int64)
        flat = self.input.slots.reshape(-1)
        used = np.flatnonzero(flat != FILLER)
        written[flat[used]] = used
        places = written[self.wanted.reshape(-1)]
        return (Memory("place", places[:, None], address_bits(len(flat))),)

    def parameters(self) -> dict[str, int]:
        size = self.input.beats * self.input.lanes
        return {
            "WIDTH": self.input.width,
            "IN_SIZE": size,
            "OUT_SIZE": self.output.beats,
            "ADDRESS_WIDTH": address_bits(size),
            "PLACE_ADDRESS": address_bits(self.output.beats),
        }

    def cost(self) -> StreamCost:
        size = self.input.beats * self.input.lanes
        places = sum(memory.bits for memory in self.memories())
        memory = places + (2 << address_bits(size)) * self.input.width
        return StreamCost(max(size, self.output.beats), memory_bits=memory)

    def needed(self, index: int = 0) -> Places:
        return np.full(self.output.beats, self.input.beats)
