"""The largest code of each window, or the sum of its codes."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from chop.hardware.streaming.component import StreamComponent, StreamCost, component
from chop.hardware.streaming.stream import FILLER, Places, Stream
from chop.hardware.streaming.windows import Window, by_pixel
from chop.integers import AvgPoolCodes, IntegerNode, MaxPoolCodes


@component(MaxPoolCodes, AvgPoolCodes)
class PoolComponent(StreamComponent):
    """Lines of the image, reduced along the columns first and then along the rows."""

    module = "fixed_pool"
    by_pixel = True

    @classmethod
    def refusal(cls, node: IntegerNode) -> str | None:
        assert isinstance(node.op, MaxPoolCodes | AvgPoolCodes)
        few = len(node.op.kernel) <= 2
        return None if few else "has three dimensions; at most two are supported"

    @classmethod
    def accepts(cls, node: IntegerNode, inputs: tuple[Stream, ...]) -> tuple[Stream, ...]:
        return (by_pixel(inputs[0]),)

    @cached_property
    def window(self) -> Window:
        op = self.node.op
        assert isinstance(op, MaxPoolCodes | AvgPoolCodes)
        dilation = op.dilation if isinstance(op, MaxPoolCodes) else (1,) * len(op.kernel)
        settings = (op.kernel, op.stride, op.padding, dilation)
        return Window.of(self.input.shape, self.node.codes.shape, *settings)

    @cached_property
    def pixel(self) -> Places:
        """The channels in the beats of a pixel."""
        channels = self.input.pixels(self.input.shape[0])
        assert channels is not None
        return channels

    @property
    def output(self) -> Stream:
        area = self.window.result[0] * self.window.result[1]
        places = self.pixel[None] * area + np.arange(area)[:, None, None]
        slots: Places = np.where(self.pixel[None] == FILLER, FILLER, places)
        return Stream(self.node.codes, slots.reshape(-1, self.input.lanes))

    def parameters(self) -> dict[str, int]:
        return {
            "LANES": self.input.lanes,
            "IN_WIDTH": self.input.width,
            "IN_SIGNED": int(self.input.signed),
            "OUT_WIDTH": self.output.width,
            "IS_SUM": int(isinstance(self.node.op, AvgPoolCodes)),
            **self.window.parameters(len(self.pixel)),
        }

    def cost(self) -> StreamCost:
        beats = len(self.pixel)
        kept = self.window.kept_codes(self.input.lanes, beats, 1)
        width = max(self.input.width, self.output.width)
        return StreamCost(self.window.cycles(beats), memory_bits=kept * width)

    def needed(self, index: int = 0) -> Places:
        return self.window.needed(len(self.pixel))

    def elastic(self, delivery: int, interval: int) -> int:
        cycles = self.cost().cycles
        return self.window.elastic(len(self.pixel), cycles, delivery, interval)

    def times(self, *inputs: Places) -> Places:
        return self.window.times(inputs[0], len(self.pixel)) + self.delay
