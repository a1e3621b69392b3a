"""Components: how the nodes of an op become hardware, and what that costs."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from chop.hardware.streaming.memory import Memory
from chop.hardware.streaming.stream import Places, Stream
from chop.integers import IntegerNode
from chop.registry import ByClass

__all__ = [
    "COMPONENTS",
    "Budget",
    "Long",
    "Natural",
    "Pointwise",
    "Stage",
    "StreamComponent",
    "StreamCost",
    "component",
]


@dataclass(frozen=True)
class Budget:
    """What a component may use."""

    multipliers: int
    cycles: int = 0  # per sample that are quick enough; 0: as quick as possible
    plain: bool = False  # whether no lane of its result may stay empty


@dataclass(frozen=True)
class StreamCost:
    """What a component costs: clock cycles per sample, multipliers, and bits of memory."""

    cycles: int
    multipliers: int = 0
    memory_bits: int = 0


class Long(int):
    """A parameter of 64 bits with a sign."""


class Natural(int):
    """A parameter of 128 bits without a sign."""


@dataclass(frozen=True)
class Stage:
    """One instance of a module, with its parameters and the memories that it reads."""

    module: str
    parameters: Mapping[str, int]
    memories: tuple[Memory, ...] = ()
    without: tuple[str, ...] = ()  # memories of the module that the node does without
    suffix: str = ""  # of the instance, after the name of the node
    bits: int | None = None  # of its result; None: those of the component


class StreamComponent(abc.ABC):
    """The hardware of one node: a module in SystemVerilog, its parameters, and its cost.

    A subclass defines `module`, the `template` with its text unless it is a file of rtl/, and
    `parameters`. The module has the ports clk, rst and, with valid and ready, data_in_0
    (data_in_1, …) and data_out_0; per memory `weight` also weight_enable, weight_address and
    weight, which is there one clock later. What it computes is the `run` of the op.
    """

    module: ClassVar[str] = ""  # empty: nothing but wires
    template: ClassVar[str] = ""
    delay: ClassVar[int] = 1  # clock cycles from its last input to a result
    by_pixel: ClassVar[bool] = False  # whether all channels of a pixel must arrive together

    def __init__(self, node: IntegerNode, inputs: tuple[Stream, ...], budget: Budget) -> None:
        self.node, self.inputs, self.budget = node, inputs, budget

    @property
    def input(self) -> Stream:
        """The only input."""
        (stream,) = self.inputs
        return stream

    @classmethod
    def refusal(cls, node: IntegerNode) -> str | None:
        """Return why the component does not implement a node of its op, or None if it does."""
        return None

    @classmethod
    def accepts(cls, node: IntegerNode, inputs: tuple[Stream, ...]) -> tuple[Stream, ...]:
        """Return the inputs in an order and with lanes that the component can take.

        An input that differs from what is given is brought into this order by a memory.
        """
        return inputs

    @classmethod
    def wants_plain(cls, node: IntegerNode) -> bool:
        """Return whether no lane of an input may stay empty; by default if there are several."""
        return len(node.inputs) > 1

    @property
    def output(self) -> Stream:
        """The result; by default in the order of the input."""
        return Stream(self.node.codes, self.inputs[0].slots)

    @abc.abstractmethod
    def parameters(self) -> dict[str, int]:
        """Return the parameters of the module."""

    def memories(self) -> tuple[Memory, ...]:
        """Return the memories that the module reads."""
        return ()

    def without(self) -> tuple[str, ...]:
        """Return the memories of the module that this node does without."""
        return ()

    def stages(self) -> tuple[Stage, ...]:
        """Return the instances of the node, one after the other."""
        return (Stage(self.module, self.parameters(), self.memories(), self.without()),)

    def cost(self) -> StreamCost:
        """Return the cost; by default that of a beat per clock without multipliers."""
        beats = max(stream.beats for stream in (*self.inputs, self.output))
        return StreamCost(beats, memory_bits=sum(m.bits for m in self.memories()))

    def needed(self, index: int = 0) -> Places:
        """Return how many beats of an input each beat of the result needs."""
        return np.arange(1, self.output.beats + 1)

    def elastic(self, delivery: int, interval: int) -> int:
        """Return the beats to store before the component, so that no other one waits for it.

        Its input is delivered within `delivery` clock cycles, and samples follow each other every
        `interval` cycles.
        """
        return 0

    def times(self, *inputs: Places) -> Places:
        """Return the clock cycle of each beat of the result, for those of the inputs."""
        last = [times[self.needed(i) - 1] for i, times in enumerate(inputs)]
        ready: Places = np.max(last, axis=0) + self.delay
        return paced(ready, 1)


class Pointwise(StreamComponent):
    """A component that computes each code alone."""

    def parameters(self) -> dict[str, int]:
        result = self.output
        return {
            "LANES": result.lanes,
            "IN_WIDTH": self.input.width,
            "IN_SIGNED": int(self.input.signed),
            "OUT_WIDTH": result.width,
        }


def paced(ready: Places, gap: int) -> Places:
    """Return when results appear that follow each other by at least `gap` cycles.

    >>> paced(np.array([5, 5, 9]), 2).tolist()
    [5, 7, 9]
    """
    steps = np.arange(len(ready)) * gap
    result: Places = np.maximum.accumulate(ready - steps) + steps
    return result


# decorates the component of one or more op classes and their subclasses
COMPONENTS: ByClass[type[StreamComponent]] = ByClass(
    "streaming component", "chop.hardware.streaming.components", for_users=True
)
component = COMPONENTS.register
