"""Padding with a constant, or with codes of the image itself."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from chop.hardware.streaming.component import Stage, StreamComponent, StreamCost, component
from chop.hardware.streaming.stream import FILLER, Places, Stream, in_lanes
from chop.hardware.streaming.windows import Window, by_pixel
from chop.integers import IntegerNode, PadCodes
from chop.integers.codes import bits_for


@component(PadCodes)
class PadComponent(StreamComponent):
    """Inserts a constant around an image; for other modes the codes are read in another order."""

    module = "stream_pad"
    by_pixel = True

    @classmethod
    def refusal(cls, node: IntegerNode) -> str | None:
        op = node.op
        assert isinstance(op, PadCodes)
        if op.mode != "constant":
            return None
        if len(op.pads) > 2 * min(2, len(node.codes.shape) - 1):
            return "pads more than rows and columns; pad these only"
        return "crops, which is not padding; use no negative pads" if min(op.pads) < 0 else None

    @classmethod
    def accepts(cls, node: IntegerNode, inputs: tuple[Stream, ...]) -> tuple[Stream, ...]:
        (stream,) = inputs
        op = node.op
        assert isinstance(op, PadCodes)
        if op.mode == "constant":
            return (by_pixel(stream),)
        places = torch.arange(stream.size).reshape(1, *stream.shape)
        moved = op.run(places)[0].flatten(1).T.flatten().numpy()
        return (stream.moved(in_lanes(moved, 1)),)

    @property
    def op(self) -> PadCodes:
        assert isinstance(self.node.op, PadCodes)
        return self.node.op

    @cached_property
    def window(self) -> Window:
        """The padded image as windows of one pixel."""
        left, right, top, bottom = (*self.op.pads, 0, 0)[:4]
        spatial = self.input.shape[1:]
        size = (1, *spatial) if len(spatial) == 1 else spatial
        result = (size[0] + top + bottom, size[1] + left + right)
        one = (1, 1)
        return Window(self.input.shape[0], (size[0], size[1]), result, one, one, (top, left), one)

    @cached_property
    def pixel(self) -> Places:
        """The channels in the beats of a pixel."""
        channels = self.input.pixels(self.input.shape[0])
        assert channels is not None
        return channels

    @property
    def output(self) -> Stream:
        shape = self.node.codes.shape
        channels = np.arange(shape[0])[:, None]
        if self.op.mode == "constant":
            channels = self.pixel
        area = int(np.prod(shape[1:]))
        places = channels[None] * area + np.arange(area)[:, None, None]
        slots: Places = np.where(channels[None] == FILLER, FILLER, places)
        return self.input.carrying(self.node.codes, slots.reshape(-1, channels.shape[1]))

    def parameters(self) -> dict[str, int]:
        window, stream = self.window, self.input
        needed = bits_for(min(self.op.code, -int(stream.signed)), self.op.code)
        if needed > stream.width or (self.op.code < 0 and not stream.signed):
            raise ValueError(
                f"{self.node.name!r} pads with the code {self.op.code}, which the {stream.width} "
                f"{'signed' if stream.signed else 'unsigned'} bits of its input do not hold; pad "
                f"after rounding to a wider format"
            )
        return {
            "LANES": stream.lanes,
            "WIDTH": stream.width,
            "BEATS": len(self.pixel),
            "ROWS": window.size[0],
            "COLUMNS": window.size[1],
            "TOP": window.padding[0],
            "BOTTOM": window.after[0],
            "LEFT": window.padding[1],
            "RIGHT": window.after[1],
            "FIRST_ROW": window.first[0],
            "FIRST_COLUMN": window.first[1],
            "FILL": self.op.code & ((1 << stream.width) - 1),
        }

    def stages(self) -> tuple[Stage, ...]:
        return super().stages() if self.op.mode == "constant" else ()

    def cost(self) -> StreamCost:
        return StreamCost(self.output.beats)

    def needed(self, index: int = 0) -> Places:
        if self.op.mode != "constant":
            return super().needed()
        return self.window.needed(len(self.pixel))

    def times(self, *inputs: Places) -> Places:
        if self.op.mode != "constant":
            return inputs[0]
        return self.window.times(inputs[0], len(self.pixel))
