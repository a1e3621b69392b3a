"""Sums, differences and products of two streams."""

from __future__ import annotations

import math

import numpy as np

from chop.hardware.streaming.component import StreamComponent, StreamCost, component
from chop.hardware.streaming.stream import FILLER, Places, Stream, in_lanes
from chop.integers import AddCodes, IntegerNode, IntegerOp, MultiplyCodes, SubtractCodes

OPERATIONS: dict[type[IntegerOp], int] = {AddCodes: 0, SubtractCodes: 1, MultiplyCodes: 2}


@component(*OPERATIONS)
class CombineComponent(StreamComponent):
    """Waits for a beat of both streams, and adds, subtracts or multiplies lane by lane."""

    module = "fixed_combine"
    template = """\
// x + y, x - y or x * y in each lane, when both streams have a beat
module fixed_combine #(
    parameter int LANES = 1,
    parameter int IN_0_WIDTH = 8,
    parameter int IN_0_SIGNED = 1,
    parameter int IN_1_WIDTH = 8,
    parameter int IN_1_SIGNED = 1,
    parameter int OUT_WIDTH = 9,
    parameter int OPERATION = 0       // 0: sum, 1: difference, 2: product
) (
    input  logic clk,
    input  logic rst,
    input  logic [LANES*IN_0_WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    input  logic [LANES*IN_1_WIDTH-1:0] data_in_1,
    input  logic data_in_1_valid,
    output logic data_in_1_ready,
    output logic [LANES*OUT_WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    logic [LANES*OUT_WIDTH-1:0] result;
    logic valid;
    logic ready;

    assign valid = data_in_0_valid && data_in_1_valid;
    assign data_in_0_ready = ready && data_in_1_valid;
    assign data_in_1_ready = ready && data_in_0_valid;

    for (genvar i = 0; i < LANES; i++) begin : lane
        logic [IN_0_WIDTH-1:0] code_0;
        logic [IN_1_WIDTH-1:0] code_1;
        logic signed [OUT_WIDTH-1:0] x;
        logic signed [OUT_WIDTH-1:0] y;
        assign code_0 = data_in_0[i*IN_0_WIDTH +: IN_0_WIDTH];
        assign code_1 = data_in_1[i*IN_1_WIDTH +: IN_1_WIDTH];
        assign x = OUT_WIDTH'($signed({IN_0_SIGNED != 0 && code_0[IN_0_WIDTH-1], code_0}));
        assign y = OUT_WIDTH'($signed({IN_1_SIGNED != 0 && code_1[IN_1_WIDTH-1], code_1}));
        if (OPERATION == 0) begin : sum
            assign result[i*OUT_WIDTH +: OUT_WIDTH] = x + y;
        end else if (OPERATION == 1) begin : difference
            assign result[i*OUT_WIDTH +: OUT_WIDTH] = x - y;
        end else begin : product
            assign result[i*OUT_WIDTH +: OUT_WIDTH] = x * y;
        end
    end

    stream_register #(.WIDTH(LANES * OUT_WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(result), .data_in_0_valid(valid), .data_in_0_ready(ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
"""

    @classmethod
    def accepts(cls, node: IntegerNode, inputs: tuple[Stream, ...]) -> tuple[Stream, ...]:
        shape = node.codes.shape
        if all(stream.shape == shape and not stream.free for stream in inputs):
            lanes = math.gcd(*(stream.lanes for stream in inputs))
            one, other = (stream.slots.reshape(-1, lanes) for stream in inputs)
            if np.array_equal(one, other):
                return tuple(narrowed(stream, lanes) for stream in inputs)
        whole = next((stream for stream in inputs if stream.shape == shape), None)
        if whole is not None and all(stream.free for stream in inputs if stream is not whole):
            return tuple(s if s is whole else alongside(s, whole) for s in inputs)
        order = np.arange(math.prod(shape)) if whole is None else whole.sequence
        return tuple(
            one_by_one(stream) if stream is whole else repeated(stream, shape, order)
            for stream in inputs
        )

    @property
    def output(self) -> Stream:
        shape = self.node.codes.shape
        whole = next((s.slots for s in self.inputs if s.shape == shape), None)
        rest = in_lanes(np.arange(math.prod(shape)), 1)
        return Stream(self.node.codes, rest if whole is None else whole)

    def parameters(self) -> dict[str, int]:
        one, other = self.inputs
        return {
            "LANES": self.output.lanes,
            "IN_0_WIDTH": one.width,
            "IN_0_SIGNED": int(one.signed),
            "IN_1_WIDTH": other.width,
            "IN_1_SIGNED": int(other.signed),
            "OUT_WIDTH": self.output.width,
            "OPERATION": OPERATIONS[type(self.node.op)],
        }

    def cost(self) -> StreamCost:
        product = isinstance(self.node.op, MultiplyCodes)
        return StreamCost(self.output.beats, self.output.lanes if product else 0)


def narrowed(stream: Stream, lanes: int) -> Stream:
    """Return a stream with fewer lanes, or the same."""
    return stream if stream.lanes == lanes else stream.moved(stream.slots.reshape(-1, lanes))


def one_by_one(stream: Stream) -> Stream:
    """Return a stream code by code, without empty lanes."""
    if stream.lanes == 1 and stream.beats == stream.size:
        return stream
    return stream.moved(in_lanes(stream.sequence, 1))


def alongside(stream: Stream, whole: Stream) -> Stream:
    """Return the codes of a value that is broadcast to another one, in the slots of the other."""
    places = np.arange(stream.size).reshape(stream.shape)
    every = np.broadcast_to(places, whole.shape).reshape(-1)
    slots: Places = np.where(whole.slots == FILLER, FILLER, every[whole.slots])
    return stream.moved(slots)


def repeated(stream: Stream, shape: tuple[int, ...], order: Places) -> Stream:
    """Return the codes of a value that is broadcast to a shape, one by one in an order."""
    places = np.arange(stream.size).reshape(stream.shape)
    every = np.broadcast_to(places, shape).reshape(-1)[order]
    slots = in_lanes(every, 1)
    return stream if np.array_equal(slots, stream.slots) else stream.moved(slots)
