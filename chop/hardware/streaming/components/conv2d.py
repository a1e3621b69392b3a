"""Convolutions of one and two dimensions: lines of the image in memories, weights in ROMs."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from chop.hardware.streaming.component import StreamCost, component
from chop.hardware.streaming.components.linear import WeightedComponent
from chop.hardware.streaming.stream import FILLER, Places, Stream, in_lanes
from chop.hardware.streaming.windows import Window, by_pixel
from chop.integers import ConvCodes, IntegerNode


@component(ConvCodes)
class ConvComponent(WeightedComponent):
    """Windows of the image, each multiplied with the weights as a linear layer does."""

    module = "fixed_conv2d"
    by_pixel = True

    @classmethod
    def refusal(cls, node: IntegerNode) -> str | None:
        assert isinstance(node.op, ConvCodes)
        return "has three dimensions; at most two are supported" if node.op.rank > 2 else None

    @classmethod
    def accepts(cls, node: IntegerNode, inputs: tuple[Stream, ...]) -> tuple[Stream, ...]:
        assert isinstance(node.op, ConvCodes)
        stream = by_pixel(inputs[0])
        if node.op.groups == 1:
            return (stream,)
        if FILLER in stream.slots:  # of an input of the network, whose lanes need not be full
            return (stream.moved(in_lanes(stream.sequence, 1)),)
        lanes = math.gcd(stream.lanes, stream.shape[0] // node.op.groups)
        return (stream if lanes == stream.lanes else stream.moved(stream.slots.reshape(-1, lanes)),)

    @classmethod
    def wants_plain(cls, node: IntegerNode) -> bool:
        assert isinstance(node.op, ConvCodes)
        return node.op.groups > 1

    @property
    def conv(self) -> ConvCodes:
        assert isinstance(self.node.op, ConvCodes)
        return self.node.op

    @cached_property
    def window(self) -> Window:
        op = self.conv
        settings = (tuple(op.weight.shape[2:]), op.stride, op.padding, op.dilation)
        return Window.of(self.input.shape, self.node.codes.shape, *settings)

    @cached_property
    def pixel(self) -> Places:
        """The channels in the beats of a pixel."""
        channels = self.input.pixels(self.input.shape[0])
        assert channels is not None
        return channels

    @property
    def num_vectors(self) -> int:
        return math.prod(self.window.result)

    def vector(self) -> Places:
        groups = self.conv.groups
        channels = self.pixel.reshape(groups, -1, 1, 1, self.input.lanes)
        rows, columns = self.window.kernel
        row = np.arange(rows).reshape(1, 1, 1, rows, 1)
        column = np.arange(columns).reshape(1, 1, columns, 1, 1)
        own = channels - np.arange(groups).reshape(-1, 1, 1, 1, 1) * self.conv.weight.shape[1]
        places = np.where(channels == FILLER, FILLER, (own * rows + row) * columns + column)
        return places.reshape(groups, channels.shape[1], -1)

    @property
    def output(self) -> Stream:
        pixels = np.arange(self.num_vectors)
        return Stream(self.node.codes, self.result_slots(pixels, self.num_vectors, 1))

    def parameters(self) -> dict[str, int]:
        # those of the window last, as BEATS of the products are per group
        window = self.window.parameters(len(self.pixel))
        return {"IN_LANES": self.input.lanes, **self.dot_parameters(), **window}

    def cost(self) -> StreamCost:
        cost, beats = super().cost(), len(self.pixel)
        kept = self.window.kept_codes(self.input.lanes, beats, self.window.kernel[0])
        memory = cost.memory_bits + kept * self.input.width
        used = self.folding.cycles // self.num_vectors
        return StreamCost(self.window.interval(beats, used), cost.multipliers, memory)

    def needed(self, index: int = 0) -> Places:
        beats = len(self.pixel)
        complete = self.window.needed(beats).reshape(-1, beats)[:, -1]
        return np.repeat(complete, self.folding.passes * self.folding.groups)

    def elastic(self, delivery: int, interval: int) -> int:
        cycles = self.cost().cycles
        return self.window.elastic(len(self.pixel), cycles, delivery, interval)

    def times(self, *inputs: Places) -> Places:
        return self.dot_times(self.window.times(inputs[0], len(self.pixel)))
