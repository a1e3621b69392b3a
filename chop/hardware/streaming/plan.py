"""A plan of a streaming circuit: its components, and the streams between them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from chop.hardware.streaming.component import COMPONENTS, Budget, StreamComponent, StreamCost
from chop.hardware.streaming.components.constant import ConstantComponent
from chop.hardware.streaming.components.reorder import MovedComponent
from chop.hardware.streaming.folding import parts
from chop.hardware.streaming.stream import Places, Stream, channels_last, in_lanes
from chop.integers import (
    ConstantCodes,
    ConvCodes,
    IntegerGraph,
    IntegerNode,
    LinearCodes,
    QuantizeInput,
)

__all__ = ["PlannedComponent", "StreamPlan", "make_plan"]

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)  # of the cycles of the slowest component, tried in turn
MARGIN = 16  # beats of a queue beyond those without which the circuit would stand still


@dataclass(frozen=True, eq=False)
class PlannedComponent:
    """A component in a plan, and the names of the boxes that it gets its inputs from."""

    name: str
    component: StreamComponent
    inputs: tuple[str, ...]


@dataclass(eq=False)
class StreamPlan:
    """Components in the order of the data, with the streams of inputs and outputs."""

    multipliers: int  # per component, at most
    cycles: int = 0  # per sample that are quick enough; 0: as quick as possible
    sources: dict[str, Stream] = field(default_factory=dict)
    boxes: dict[str, PlannedComponent] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    streams: dict[str, Stream] = field(default_factory=dict)
    constants: dict[str, IntegerNode] = field(default_factory=dict)  # without a reader so far

    @property
    def costs(self) -> dict[str, StreamCost]:
        """The cost of each component."""
        return {name: box.component.cost() for name, box in self.boxes.items()}

    @property
    def total(self) -> StreamCost:
        """The cost of all components together, with the queues between them."""
        costs = self.costs.values()
        queued = sum(
            depth * self.streams[self.boxes[name].inputs[index]].bits
            for (name, index), depth in self.queues().items()
        )
        return StreamCost(
            self.interval,
            sum(cost.multipliers for cost in costs),
            sum(cost.memory_bits for cost in costs) + queued,
        )

    @property
    def interval(self) -> int:
        """The clock cycles between samples."""
        ends = [stream.beats for stream in self.sources.values()]
        ends += [self.streams[name].beats for name in self.outputs]
        return max([*ends, *(cost.cycles for cost in self.costs.values())])

    def latency(self) -> int:
        """Return the clock cycles from the first beat of a sample to its last result."""
        times = {name: np.arange(stream.beats) for name, stream in self.sources.items()}
        for name, box in self.boxes.items():
            times[name] = box.component.times(*(times[i] for i in box.inputs))
        return int(max(times[name][-1] for name in self.outputs))

    def consumers(self) -> dict[str, list[tuple[str, int]]]:
        """Return who takes each stream: boxes with the number of their input, or outputs."""
        names = [*self.sources, *self.boxes]
        found: dict[str, list[tuple[str, int]]] = {name: [] for name in names}
        for box in self.boxes.values():
            for index, name in enumerate(box.inputs):
                found[name].append((box.name, index))
        for index, name in enumerate(self.outputs):
            found[name].append(("", index))
        return found

    def queues(self) -> dict[tuple[str, int], int]:
        """Return the beats to store before inputs of components, by box and input.

        Two branches of one stream meet again: until the slower one has its first results, the
        other one has to wait, and the stream must not stand still meanwhile.
        """
        forks = {name for name, users in self.consumers().items() if len(users) > 1}
        # stream -> fork -> how many beats of the fork each beat of the stream needs
        needs: dict[str, dict[str, Places]] = {name: {} for name in self.sources}
        depths = self._elastic()
        for name, stream in self.sources.items():
            if name in forks:
                needs[name] = {name: np.arange(1, stream.beats + 1)}
        for name, box in self.boxes.items():
            needed = [box.component.needed(i) for i in range(len(box.inputs))]
            total: dict[str, Places] = {}
            for source, count in zip(box.inputs, needed, strict=True):
                for fork, need in needs[source].items():
                    mine = need[count - 1]
                    total[fork] = np.maximum(total.get(fork, mine), mine)
            if len(box.inputs) > 1:
                depths |= self._depths(box, needs, needed, total)
            if name in forks:
                total = {**total, name: np.arange(1, self.streams[name].beats + 1)}
            needs[name] = total
        return depths

    def _depths(
        self,
        box: PlannedComponent,
        needs: dict[str, dict[str, Places]],
        needed: list[Places],
        total: dict[str, Places],
    ) -> dict[tuple[str, int], int]:
        """Return the beats that wait at each input of a box while another input is late."""
        depths = {}
        for index, (source, count) in enumerate(zip(box.inputs, needed, strict=True)):
            used = np.concatenate([[0], count[:-1]])
            waiting = [
                np.searchsorted(need, total[fork], side="right") - used
                for fork, need in needs[source].items()
            ]
            depth = max((int(beats.max()) for beats in waiting), default=0)
            if depth > 1:
                depths[box.name, index] = min(depth, self.streams[source].beats) + MARGIN
        return depths

    def _elastic(self) -> dict[tuple[str, int], int]:
        """Return the queues without which components would wait for each other."""
        interval, costs = self.interval, self.costs
        delivery = {name: stream.beats for name, stream in self.sources.items()}
        depths = {}
        for name, box in self.boxes.items():
            slowest = max((delivery[source] for source in box.inputs), default=0)
            delivery[name] = max(costs[name].cycles, slowest)
            for index in range(len(box.inputs)):
                if depth := box.component.elastic(slowest, interval):
                    depths[name, index] = depth
        return depths


def make_plan(graph: IntegerGraph, max_parallelism: int) -> StreamPlan:
    """Return the plan with the fewest multipliers among those with the shortest interval.

    The slowest component determines the interval; the others get no more multipliers than they
    need to keep up with it.
    """
    quickest = _planned(graph, StreamPlan(max_parallelism))
    for share in SHARES:
        plan = _planned(graph, StreamPlan(max_parallelism, int(quickest.interval * share)))
        if plan.interval <= quickest.interval:
            return plan
    return quickest


def _planned(graph: IntegerGraph, plan: StreamPlan) -> StreamPlan:
    users = _users(graph)
    plain = _reaching(graph, users)
    for name, node in graph.nodes.items():
        if isinstance(node.op, QuantizeInput):
            slots = _input_slots(graph, node, users, plan)
            plan.sources[name] = plan.streams[name] = Stream(node.codes, slots)
        elif name in users or name in graph.outputs:
            _place(plan, node, name in plain)
    for name in graph.outputs:
        stream = plan.streams[name]
        wanted = stream.moved(in_lanes(np.arange(stream.size), 1))
        fits = stream.port("data_out", name) is not None
        plan.outputs.append(_sent(plan, name, stream, stream if fits else wanted))
    return plan


def _place(plan: StreamPlan, node: IntegerNode, plain: bool) -> None:
    """Add the component of a node to a plan."""
    cls = COMPONENTS[type(node.op)]
    given = tuple(plan.streams[name] for name in node.inputs)
    if isinstance(node.op, ConstantCodes):
        plan.constants[node.name] = node
        plan.streams[node.name] = ConstantComponent(node, (), Budget(1)).output
        return
    inputs = tuple(
        _sent(plan, name, stream, wanted)
        for name, stream, wanted in zip(node.inputs, given, cls.accepts(node, given), strict=True)
    )
    streams = tuple(plan.streams[name] for name in inputs)
    made = cls(node, streams, Budget(plan.multipliers, plan.cycles, plain))
    plan.boxes[node.name] = PlannedComponent(node.name, made, inputs)
    plan.streams[node.name] = made.output


def _sent(plan: StreamPlan, name: str, stream: Stream, wanted: Stream) -> str:
    """Return the name of the box that sends a stream as it is wanted."""
    if name in plan.constants:
        return _constant(plan, plan.constants[name], wanted)
    return name if wanted is stream else _reordered(plan, name, wanted)


def _constant(plan: StreamPlan, node: IntegerNode, wanted: Stream) -> str:
    """Send a constant in the order that its reader wants; each order has a memory of its own."""
    number = 0
    while (name := f"{node.name}_{number}" if number else node.name) in plan.boxes:
        if np.array_equal(plan.streams[name].slots, wanted.slots):
            return name
        number += 1
    made = ConstantComponent(node, (), Budget(1))
    made.wanted = wanted.slots
    plan.boxes[name] = PlannedComponent(name, made, ())
    plan.streams[name] = made.output
    return name


def _reordered(plan: StreamPlan, name: str, wanted: Stream) -> str:
    """Bring a stream into another order and return the name of the result."""
    stream = plan.streams[name]
    number = 0
    while (new := f"{name}_order_{number}" if number else f"{name}_order") in plan.streams:
        if np.array_equal(plan.streams[new].slots, wanted.slots):
            return new
        number += 1
    plan.boxes[new] = PlannedComponent(new, MovedComponent.between(new, stream, wanted), (name,))
    plan.streams[new] = wanted
    return new


def _users(graph: IntegerGraph) -> dict[str, list[IntegerNode]]:
    """Return the nodes that take each value and lead to an output."""
    users: dict[str, list[IntegerNode]] = {}
    for node in reversed(graph.nodes.values()):
        if node.name in graph.outputs or node.name in users:
            for name in node.inputs:
                users.setdefault(name, []).append(node)
    return users


def _reaching(graph: IntegerGraph, users: dict[str, list[IntegerNode]]) -> set[str]:
    """Return the nodes that reach, without another weighted layer between, where lanes are full.

    These are outputs, sums, and convolutions in groups.
    """
    found = set(graph.outputs)
    for node in reversed(graph.nodes.values()):
        for user in users.get(node.name, ()):
            weighted = isinstance(user.op, LinearCodes | ConvCodes)
            wanted = COMPONENTS[type(user.op)].wants_plain(user)
            if wanted or (user.name in found and not weighted):
                found.add(node.name)
    return found


def _input_slots(
    graph: IntegerGraph,
    node: IntegerNode,
    users: dict[str, list[IntegerNode]],
    plan: StreamPlan,
) -> Places:
    """Return the slots of an input: as many lanes as allowed, or as few as are quick enough."""
    shape = node.codes.shape
    pixels = len(shape) > 1 and _met_by_pixel(node.name, shape, users)
    sequence = channels_last(shape) if pixels else np.arange(math.prod(shape))
    length = 1 if not shape else shape[0] if pixels else shape[-1]
    whole = len(sequence) == length
    choices = [n for n in parts(length) if n <= plan.multipliers and (whole or length % n == 0)]
    enough = [n for n in choices if -(-len(sequence) // n) <= plan.cycles]
    return in_lanes(sequence, enough[0] if enough else choices[-1])


def _met_by_pixel(name: str, shape: tuple[int, ...], users: dict[str, list[IntegerNode]]) -> bool:
    """Return whether the first component that needs an order wants pixels."""
    for user in users.get(name, ()):
        if COMPONENTS[type(user.op)].by_pixel:
            return True
        same = user.codes.shape == shape and not isinstance(user.op, LinearCodes)
        if same and _met_by_pixel(user.name, shape, users):
            return True
    return False
