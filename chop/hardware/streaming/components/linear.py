"""Sums of products with constant weights, for linear layers and inside convolutions."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from chop.hardware.streaming.component import StreamComponent, StreamCost, component, paced
from chop.hardware.streaming.folding import Folding, fold
from chop.hardware.streaming.memory import Memory
from chop.hardware.streaming.stream import FILLER, Places, Stream, in_lanes
from chop.integers import IntegerNode, LinearCodes
from chop.integers.codes import bits_for
from chop.integers.ops.weighted import WeightedOp
from chop.registry import not_defined


class WeightedComponent(StreamComponent):
    """What linear layers and convolutions have in common: the weights, and how they are folded."""

    def vector(self) -> Places:
        """Return the column of the weight of each slot of a vector: (groups, beats, slots)."""
        raise not_defined(self, "vector", "weighted component")

    @property
    def num_vectors(self) -> int:
        """The number of vectors of a sample that are multiplied with the weights."""
        raise not_defined(self, "num_vectors", "weighted component")

    @property
    def op(self) -> WeightedOp:
        assert isinstance(self.node.op, WeightedOp)
        return self.node.op

    @cached_property
    def folding(self) -> Folding:
        """How the products are distributed over multipliers and clock cycles."""
        groups, beats, slots = self.vector().shape
        rows = len(self.op.weight) // groups
        return fold(rows, groups, beats, slots, self.num_vectors, self.budget)

    @cached_property
    def weight_bits(self) -> int:
        low, high = int(self.op.weight.min()), int(self.op.weight.max())
        return bits_for(min(low, -1), max(high, 0))

    def memories(self) -> tuple[Memory, ...]:
        return self._memories

    @cached_property
    def _memories(self) -> tuple[Memory, ...]:
        folding, op = self.folding, self.op
        weight = op.weight.flatten(1).numpy()
        rows = folding.weights(weight, self.vector())
        memory = Memory("weight", rows, self.weight_bits)
        if op.bias is None:
            return (memory,)
        bias = folding.of_rows(op.bias.numpy())
        return (memory, Memory("bias", bias, self.output.width))

    def without(self) -> tuple[str, ...]:
        return ("bias",) if self.op.bias is None else ()

    def dot_parameters(self) -> dict[str, int]:
        """Return the parameters of fixed_linear."""
        folding = self.folding
        return {
            "IN_WIDTH": self.input.width,
            "IN_SIGNED": int(self.input.signed),
            "WEIGHT_WIDTH": self.weight_bits,
            "SHIFT": self.op.shift,
            "OUT_WIDTH": self.output.width,
            **folding.parameters(),
        }

    def cost(self) -> StreamCost:
        folding = self.folding
        memory = sum(memory.bits for memory in self.memories())
        memory += folding.buffer_codes * self.input.width
        return StreamCost(folding.cycles, folding.multipliers, memory)

    def result_slots(self, numbers: Places, channel_stride: int, vector_stride: int) -> Places:
        """Return the slots of the results of vectors with these numbers."""
        rows = self.folding.of_rows(np.arange(len(self.op.weight)), FILLER)
        places = rows[None] * channel_stride + numbers[:, None, None] * vector_stride
        slots: Places = np.where(rows[None] == FILLER, FILLER, places)
        return slots.reshape(-1, rows.shape[1])

    def dot_times(self, arrived: Places) -> Places:
        """Return when results appear, for the times at which the beats of vectors arrive."""
        folding = self.folding
        complete = arrived.reshape(self.num_vectors, -1)[:, -1]
        vector = folding.words * folding.slices * folding.passes * folding.groups
        # the first product of a vector starts one cycle after its last beat
        starts = paced(complete + 1, vector)
        per_pass = folding.words * folding.slices
        passes = np.arange(1, folding.passes * folding.groups + 1) * per_pass
        return (starts[:, None] + passes[None] - 1 + folding.delay).reshape(-1)


@component(LinearCodes)
class LinearComponent(WeightedComponent):
    """A matrix in a ROM, MULTIPLIED · OUT_LANES multipliers, and one accumulator per lane."""

    module = "fixed_linear"

    @classmethod
    def accepts(cls, node: IntegerNode, inputs: tuple[Stream, ...]) -> tuple[Stream, ...]:
        (stream,) = inputs
        if stream.vectors(stream.shape[-1]) is not None:
            return inputs
        sequence = np.arange(stream.size)
        return (stream.moved(in_lanes(sequence, 1)),)

    @property
    def num_vectors(self) -> int:
        return self.input.size // self.input.shape[-1]

    def vector(self) -> Places:
        order = self.input.vectors(self.input.shape[-1])
        assert order is not None
        return order[1][None]

    @property
    def output(self) -> Stream:
        order = self.input.vectors(self.input.shape[-1])
        assert order is not None
        return Stream(self.node.codes, self.result_slots(order[0], 1, len(self.op.weight)))

    def parameters(self) -> dict[str, int]:
        return {"IN_LANES": self.input.lanes, **self.dot_parameters()}

    def needed(self, index: int = 0) -> Places:
        vectors = np.arange(1, self.num_vectors + 1) * (self.input.beats // self.num_vectors)
        return np.repeat(vectors, self.folding.passes * self.folding.groups)

    def times(self, *inputs: Places) -> Places:
        return self.dot_times(inputs[0])
