"""Codes that are the same for every sample."""

from __future__ import annotations

import math

import numpy as np

from chop.hardware.streaming.component import StreamComponent, component
from chop.hardware.streaming.memory import Memory, address_bits, repeating
from chop.hardware.streaming.stream import FILLER, Places, Stream, in_lanes
from chop.integers import ConstantCodes


@component(ConstantCodes)
class ConstantComponent(StreamComponent):
    """A ROM that is read again and again, in whatever order its reader wants."""

    module = "stream_constant"
    template = """\
// The words of a memory, again and again
module stream_constant #(
    parameter int WIDTH = 8,
    parameter int PERIOD = 1,
    parameter int VALUE_ADDRESS = 1
) (
    input  logic clk,
    input  logic rst,
    output logic value_enable,
    output logic [VALUE_ADDRESS-1:0] value_address,
    input  logic [WIDTH-1:0] value,
    output logic [WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    logic valid;
    logic ready;

    assign value_enable = !valid || ready;

    always_ff @(posedge clk) begin
        valid <= 1'b1;
        if (value_enable)
            value_address <= value_address == VALUE_ADDRESS'(PERIOD - 1)
                ? '0 : value_address + 1'b1;
        if (rst) begin
            valid <= 1'b0;
            value_address <= '0;
        end
    end

    stream_register #(.WIDTH(WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(value), .data_in_0_valid(valid), .data_in_0_ready(ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
"""
    wanted: Places | None = None  # the slots that its reader wants

    @property
    def output(self) -> Stream:
        if self.wanted is not None:
            return Stream(self.node.codes, self.wanted, free=True)
        count = math.prod(self.node.codes.shape)
        return Stream(self.node.codes, in_lanes(np.arange(count), 1), free=True)

    def memories(self) -> tuple[Memory, ...]:
        op = self.node.op
        assert isinstance(op, ConstantCodes)
        slots = self.output.slots
        rows = np.where(slots == FILLER, 0, op.value.reshape(-1).numpy()[slots])
        return (Memory("value", repeating(rows), self.output.width),)

    def parameters(self) -> dict[str, int]:
        (memory,) = self.memories()
        return {
            "WIDTH": memory.word_bits,
            "PERIOD": memory.depth,
            "VALUE_ADDRESS": address_bits(memory.depth),
        }

    def times(self, *inputs: Places) -> Places:
        return np.arange(self.output.beats)
