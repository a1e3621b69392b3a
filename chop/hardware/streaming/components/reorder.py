"""Codes in another order, and with other lanes: two memories for a sample each."""

from __future__ import annotations

import numpy as np

from chop.hardware.streaming.component import Budget, Stage, StreamComponent, StreamCost
from chop.hardware.streaming.memory import Memory, address_bits
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

    def parameters(self) -> dict[str, int]:
        parts = self.input.lanes // self.output.lanes
        return {"WIDTH": self.output.bits, "PARTS": parts}

    def needed(self, index: int = 0) -> Places:
        parts = self.input.lanes // self.output.lanes
        return np.repeat(np.arange(1, self.input.beats + 1), parts)


class ReorderComponent(MovedComponent):
    """Writes a sample code by code while it reads the one before in the other order."""

    module = "stream_reorder"
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
