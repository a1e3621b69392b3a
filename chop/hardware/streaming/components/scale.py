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
