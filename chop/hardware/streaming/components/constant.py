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
