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
