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
from chop.integers.ops.requantize import LIMB, STICKY

MAX_MULTIPLIER_BITS = 48


@component(Requantize)
class RequantizeComponent(Pointwise):
    """A shift with rounding, and saturation or wrapping around."""

    module = "fixed_requantize"

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
        if multiplier is not None and int(multiplier.max()).bit_length() > MAX_MULTIPLIER_BITS:
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
