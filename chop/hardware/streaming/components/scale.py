"""multiplier · code + offset, with numbers that may differ by channel."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from chop.hardware.streaming.component import Pointwise, StreamCost, component
from chop.hardware.streaming.memory import Memory, repeating
from chop.hardware.streaming.stream import FILLER, Places, Stream
from chop.integers import ChannelAffine, Refine
from chop.integers.codes import bits_for

SCALE = """\
// x * multiplier + offset in each lane; both are read from memories with one word per beat of a
// period, such as the beats of a pixel.
module fixed_scale #(
    parameter int LANES = 1,
    parameter int IN_WIDTH = 8,
    parameter int IN_SIGNED = 1,
    parameter int OUT_WIDTH = 24,
    parameter int MULTIPLIER_WIDTH = 16,
    parameter int PERIOD = 1,
    parameter int MULTIPLIER_ADDRESS = 1,
    parameter int OFFSET_ADDRESS = 1
) (
    input  logic clk,
    input  logic rst,
    input  logic [LANES*IN_WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic multiplier_enable,
    output logic [MULTIPLIER_ADDRESS-1:0] multiplier_address,
    input  logic [LANES*MULTIPLIER_WIDTH-1:0] multiplier,
    output logic offset_enable,
    output logic [OFFSET_ADDRESS-1:0] offset_address,
    input  logic [LANES*OUT_WIDTH-1:0] offset,
    output logic [LANES*OUT_WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    // stage 1: numbers of the memories, 2: products
    logic [2:1] valid;
    logic [LANES*IN_WIDTH-1:0] codes;
    logic [LANES*OUT_WIDTH-1:0] added;
    logic [LANES*OUT_WIDTH-1:0] result;
    logic step;
    logic ready;

    assign step = !valid[2] || ready;
    assign data_in_0_ready = step;
    assign multiplier_enable = step;
    assign offset_enable = step;
    assign offset_address = OFFSET_ADDRESS'(multiplier_address);

    always_ff @(posedge clk) begin
        if (step) begin
            valid <= {valid[1], data_in_0_valid};
            codes <= data_in_0;
            added <= offset;
            if (data_in_0_valid)
                multiplier_address <= multiplier_address == MULTIPLIER_ADDRESS'(PERIOD - 1)
                    ? '0 : multiplier_address + 1'b1;
        end
        if (rst) begin
            valid <= '0;
            multiplier_address <= '0;
        end
    end

    for (genvar i = 0; i < LANES; i++) begin : lane
        logic [IN_WIDTH-1:0] code;
        logic signed [IN_WIDTH:0] x;
        logic signed [MULTIPLIER_WIDTH-1:0] m;
        logic signed [OUT_WIDTH-1:0] product;
        assign code = codes[i*IN_WIDTH +: IN_WIDTH];
        assign x = {IN_SIGNED != 0 && code[IN_WIDTH-1], code};
        assign m = multiplier[i*MULTIPLIER_WIDTH +: MULTIPLIER_WIDTH];
        always_ff @(posedge clk) if (step) product <= OUT_WIDTH'(x) * OUT_WIDTH'(m);
        assign result[i*OUT_WIDTH +: OUT_WIDTH] = product + added[i*OUT_WIDTH +: OUT_WIDTH];
    end

    stream_register #(.WIDTH(LANES * OUT_WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(result), .data_in_0_valid(valid[2]), .data_in_0_ready(ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
"""


def per_beat(numbers: np.ndarray[Any, Any], stream: Stream) -> np.ndarray[Any, Any]:
    """Return one number per code in the beats of a stream, and the shortest period of beats."""
    every = np.broadcast_to(numbers, stream.shape).reshape(-1)
    rows = np.where(stream.slots == FILLER, 0, every[stream.slots])
    return repeating(rows)


def scale_memories(
    multiplier: np.ndarray[Any, Any], offset: np.ndarray[Any, Any] | None, width: int
) -> tuple[Memory, ...]:
    """Return the memories of fixed_scale for words of numbers."""
    low, high = min(map(int, multiplier.flat)), max(map(int, multiplier.flat))
    memories = (Memory("multiplier", multiplier, bits_for(min(low, -1), max(high, 0))),)
    return memories if offset is None else (*memories, Memory("offset", offset, width))


def scale_parameters(stream: Stream, width: int, memories: tuple[Memory, ...]) -> dict[str, int]:
    """Return the parameters of fixed_scale."""
    multiplier = memories[0]
    return {
        "LANES": stream.lanes,
        "IN_WIDTH": stream.width,
        "IN_SIGNED": int(stream.signed),
        "OUT_WIDTH": width,
        "MULTIPLIER_WIDTH": multiplier.width,
        "PERIOD": multiplier.depth,
        "MULTIPLIER_ADDRESS": multiplier.address_bits,
        "OFFSET_ADDRESS": multiplier.address_bits,
    }


@component(ChannelAffine, Refine)
class ScaleComponent(Pointwise):
    """A multiplier per lane, with numbers from memories."""

    module = "fixed_scale"
    template = SCALE
    delay = 3

    def _numbers(self) -> tuple[Places, Places | None]:
        """Return the multiplier and the offset of each code, in the beats of a period."""
        op, stream = self.node.op, self.input
        if isinstance(op, Refine):
            return per_beat(op.factor.numpy(), stream), None
        assert isinstance(op, ChannelAffine)

        def along(numbers: Tensor) -> Places:
            shaped = numbers.view(-1, *[1] * (len(stream.shape) - 1)).numpy()
            return np.broadcast_to(shaped, stream.shape)

        both = np.stack([along(op.multiplier), along(op.offset)], axis=-1)
        every = both.reshape(-1, 2)[stream.slots]
        every[stream.slots == FILLER] = 0
        rows = repeating(every.reshape(len(every), -1)).reshape(-1, stream.lanes, 2)
        return rows[..., 0], rows[..., 1]

    def memories(self) -> tuple[Memory, ...]:
        return scale_memories(*self._numbers(), self.output.width)

    def without(self) -> tuple[str, ...]:
        return ("offset",) if len(self.memories()) == 1 else ()

    def parameters(self) -> dict[str, int]:
        return scale_parameters(self.input, self.output.width, self.memories())

    def cost(self) -> StreamCost:
        memory = sum(memory.bits for memory in self.memories())
        return StreamCost(self.input.beats, self.input.lanes, memory)
