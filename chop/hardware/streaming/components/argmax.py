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
