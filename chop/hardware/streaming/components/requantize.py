"""Codes to codes of another word: a multiplication if scales are floats, a shift, and a range."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from chop.hardware.streaming.component import Long, Pointwise, Stage, StreamCost, component
from chop.hardware.streaming.components.scale import (
    ScaleComponent,
    per_beat,
    scale_memories,
    scale_parameters,
)
from chop.hardware.streaming.division import DIVIDE_DELAY, ROUNDINGS, Division
from chop.hardware.streaming.memory import Memory
from chop.hardware.streaming.stream import Places
from chop.integers import IntegerNode, Requantize
from chop.integers.requantize import LIMB, STICKY

MOST_MULTIPLIER_BITS = 48


@component(Requantize)
class RequantizeComponent(Pointwise):
    """A shift with rounding, and saturation or wrapping around."""

    module = "fixed_requantize"
    template = """\
// x / 2^SHIFT in each lane, rounded, and brought into the range of the result
module fixed_requantize #(
    parameter int LANES = 1,
    parameter int IN_WIDTH = 16,
    parameter int IN_SIGNED = 1,
    parameter int OUT_WIDTH = 8,
    parameter int RIGHT = 0,          // bits that are rounded away
    parameter int LEFT = 0,           // or zeros that are appended
    parameter int ROUNDING = 2,       // 0: down, 1: ties up, 2: ties to even
    parameter int WRAPS = 0,          // or saturates at
    parameter logic signed [63:0] LOW = -64'sd128,
    parameter logic signed [63:0] HIGH = 64'sd127
) (
    input  logic clk,
    input  logic rst,
    input  logic [LANES*IN_WIDTH-1:0] data_in_0,
    input  logic data_in_0_valid,
    output logic data_in_0_ready,
    output logic [LANES*OUT_WIDTH-1:0] data_out_0,
    output logic data_out_0_valid,
    input  logic data_out_0_ready
);
    // a sign for unsigned codes, and bits for the carry of the rounding
    localparam int FULL = IN_WIDTH + LEFT + 4;
    localparam int WIDE = FULL > OUT_WIDTH + 2 ? FULL : OUT_WIDTH + 2;

    logic [LANES*OUT_WIDTH-1:0] result;

    for (genvar i = 0; i < LANES; i++) begin : lane
        logic signed [WIDE-1:0] x;
        logic signed [WIDE-1:0] rounded;
        logic [IN_WIDTH-1:0] code;
        assign code = data_in_0[i*IN_WIDTH +: IN_WIDTH];
        assign x = WIDE'($signed({IN_SIGNED != 0 && code[IN_WIDTH-1], code})) <<< LEFT;
        if (RIGHT == 0) begin : whole
            assign rounded = x;
        end else begin : round
            logic signed [WIDE-1:0] half;
            if (ROUNDING == 0) begin : down
                assign half = '0;
            end else if (ROUNDING == 1) begin : up
                assign half = WIDE'(1) <<< (RIGHT - 1);
            end else begin : even
                assign half = (WIDE'(1) <<< (RIGHT - 1)) - WIDE'(1) + WIDE'(x[RIGHT]);
            end
            assign rounded = (x + half) >>> RIGHT;
        end
        if (WRAPS != 0) begin : wrap
            logic unused_bits;
            assign unused_bits = &rounded;
            assign result[i*OUT_WIDTH +: OUT_WIDTH] = OUT_WIDTH'(rounded);
        end else begin : saturate
            fixed_saturate #(
                .IN_WIDTH(WIDE), .OUT_WIDTH(OUT_WIDTH), .LOW(LOW), .HIGH(HIGH)
            ) bounds (.x(rounded), .result(result[i*OUT_WIDTH +: OUT_WIDTH]));
        end
    end

    stream_register #(.WIDTH(LANES * OUT_WIDTH)) register (
        .clk(clk), .rst(rst),
        .data_in_0(result),
        .data_in_0_valid(data_in_0_valid), .data_in_0_ready(data_in_0_ready),
        .data_out_0(data_out_0),
        .data_out_0_valid(data_out_0_valid), .data_out_0_ready(data_out_0_ready)
    );
endmodule
"""

    @classmethod
    def refusal(cls, node: IntegerNode) -> str | None:
        op = node.op
        assert isinstance(op, Requantize)
        assert op.divisor is not None
        if op.divisor.numel() > 1 and int(op.divisor.min()) < int(op.divisor.max()):
            return (
                "divides by numbers that differ by place; use a window that is the same everywhere"
            )
        if int(op.divisor.max()) > 1 and op.shift is not None and op.shift.numel() > 1:
            return "divides channels of different scales; use one scale per tensor"
        multiplier, _ = _multiplied(op)
        if multiplier is not None and int(multiplier.max()).bit_length() > MOST_MULTIPLIER_BITS:
            return "has scales that differ too much between channels; use one scale per tensor"
        return None

    @property
    def op(self) -> Requantize:
        assert isinstance(self.node.op, Requantize)
        return self.node.op

    @cached_property
    def scale(self) -> tuple[Memory, ...]:
        """The memory of multipliers, if there are any."""
        multiplier, _ = _multiplied(self.op)
        if multiplier is None:
            return ()
        return scale_memories(per_beat(multiplier.numpy(), self.input), None, 0)

    @property
    def division(self) -> Division | None:
        """The division, if the divisor is not a power of two."""
        assert self.op.divisor is not None
        divisor = int(self.op.divisor.max())
        if divisor == 1:
            return None
        _, shift = _multiplied(self.op)
        return Division(self.input, divisor, shift, self.op.word)

    def stages(self) -> tuple[Stage, ...]:
        own = Stage(self.module, self.parameters())
        if division := self.division:
            settings = {"LANES": self.input.lanes, **division.parameters()}
            bits = division.width * self.input.lanes
            return (Stage("fixed_divide", settings, suffix="_divide", bits=bits), own)
        if not self.scale:
            return (own,)
        width = self._scaled_width
        settings = scale_parameters(self.input, width, self.scale)
        bits = width * self.input.lanes
        stage = Stage("fixed_scale", settings, self.scale, ("offset",), "_scale", bits)
        return (stage, own)

    @property
    def _scaled_width(self) -> int:
        return self.input.width + sum(memory.width for memory in self.scale)

    def parameters(self) -> dict[str, int]:
        word, (_, shift) = self.op.word, _multiplied(self.op)
        if division := self.division:
            shift = 0
        scaled: dict[str, int] = (
            {"IN_WIDTH": self._scaled_width, "IN_SIGNED": 1} if self.scale else {}
        )
        return {
            **super().parameters(),
            **scaled,
            **({"IN_WIDTH": division.width, "IN_SIGNED": 1} if division else {}),
            # beyond, all bits are rounded away or moved out
            "RIGHT": min(max(shift, 0), self._scaled_width + 2),
            "LEFT": min(max(-shift, 0), word.width + 2),
            "ROUNDING": ROUNDINGS[word.rounding],
            "WRAPS": int(word.wraps),
            "LOW": Long(word.low),
            "HIGH": Long(word.high),
        }

    def cost(self) -> StreamCost:
        multipliers = self.input.lanes if self.scale or self.division else 0
        memory = sum(memory.bits for memory in self.scale)
        return StreamCost(self.input.beats, multipliers, memory)

    def times(self, *inputs: Places) -> Places:
        scaled = ScaleComponent.delay if self.scale else 0
        return super().times(*inputs) + (DIVIDE_DELAY if self.division else scaled)


def _multiplied(op: Requantize) -> tuple[Tensor | None, int]:
    """Return multipliers, or None if all are 1, and the one shift to the right that follows."""
    assert op.shift is not None
    shift = op.shift + (LIMB - STICKY if op.wide else 0)
    if op.multiplier is None and shift.numel() == 1:
        return None, int(shift)
    most = max(0, int(shift.max()))
    numbers = torch.ones_like(shift) if op.multiplier is None else op.multiplier
    # no further than 63 bits hold: that is more than `refusal` allows
    room = 63 - int(numbers.max()).bit_length()
    return numbers << (most - shift).clamp(max=room), most
