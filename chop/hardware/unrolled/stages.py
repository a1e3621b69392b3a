"""Pipeline stages: where the registers of a layer stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Logic", "Schedule", "only_wires", "scheduled", "split"]

Logic = Any  # an alkaid CombLogic
INPUT, RELU, WRAP, ADD_CONSTANT, CONSTANT, OF_ALL_BITS = -1, 2, 3, 4, 5, 9  # alkaid's opcodes
CARRY, ADDER = 0.025390625, 1.09375  # ns per bit and besides, as alkaid counts an adder
GATE = 0.5  # ns of one level of LUTs, as alkaid counts a multiplexer


def only_wires(logic: Logic) -> bool:
    """Return whether the logic only moves and drops bits."""
    return all(op.opcode in (INPUT, WRAP, CONSTANT) for op in logic.ops)


def op_delays(logic: Logic) -> list[float]:
    """Return the delay of each op in ns.

    They are alkaid's, except for ops that it expects to be merged with what follows them: adding a
    constant, relu, and the test whether any bit is set.
    """
    delays = []
    for op in logic.ops:
        start = max((logic.ops[i].latency for i in op.input_ids), default=0.0)
        delay = max(0.0, op.latency - start)
        if op.opcode == ADD_CONSTANT:
            delay = ADDER + CARRY * sum(op.qint.kif)
        elif op.opcode == RELU or (op.opcode == OF_ALL_BITS and op.data[0] > 0):
            delay = GATE
        delays.append(delay if op.opcode not in (INPUT, CONSTANT) else 0.0)
    return delays


@dataclass(frozen=True)
class Schedule:
    """The stage of each op, and when its result is there within the stage, in ns."""

    stages: tuple[int, ...]
    times: tuple[float, ...]

    @property
    def count(self) -> int:
        return max(self.stages, default=0) + 1

    @property
    def longest(self) -> float:
        """The longest delay between two registers, in ns."""
        return max(self.times, default=0.0)


def scheduled(logic: Logic, period: float) -> Schedule:
    """Return the schedule with the fewest stages of at most `period` ns.

    Of those, it is nearly the one with the shortest delays. An op that takes longer than the period
    has a stage of its own.
    """
    delays = op_delays(logic)
    best = _greedy(logic, delays, period)
    low, high = max(delays, default=0.0), min(period, best.longest)
    while high - low > 0.02:
        middle = (low + high) / 2
        found = _greedy(logic, delays, middle)
        if found.count == best.count:
            best, high = found, middle
        else:
            low = middle
    return best


def _greedy(logic: Logic, delays: Sequence[float], period: float) -> Schedule:
    """Return the schedule that starts every op as soon as its inputs are there."""
    stages: list[int] = []
    times: list[float] = []
    for op, delay in zip(logic.ops, delays, strict=True):
        stage, start = max(((stages[i], times[i]) for i in op.input_ids), default=(0, 0.0))
        end = start + delay
        if end > period and start > 0:
            stage, end = stage + 1, delay
        stages.append(stage)
        times.append(end)
    return Schedule(tuple(stages), tuple(times))


def split(logic: Logic, schedule: Schedule) -> list[Logic]:
    """Return the logic of each stage; the outputs of one are the inputs of the next."""
    last = [-1] * len(logic.ops)  # the stage up to which a result is needed
    for op, stage in zip(logic.ops, schedule.stages, strict=True):
        for i in op.input_ids:
            last[i] = max(last[i], stage)
    for i in logic.out_idxs:
        last[i] = schedule.count - 1
    carried = [
        [
            i
            for i, op in enumerate(logic.ops)
            if op.opcode != CONSTANT and schedule.stages[i] < stage <= last[i]
        ]
        for stage in range(schedule.count)
    ]
    return [_stage(logic, schedule, carried, number) for number in range(schedule.count)]


def _stage(logic: Logic, schedule: Schedule, carried: list[list[int]], number: int) -> Logic:
    first, final = number == 0, number == schedule.count - 1
    taken = {old: place for place, old in enumerate(carried[number])}
    own = [i for i, stage in enumerate(schedule.stages) if stage == number]
    wanted = logic.out_idxs if final else carried[number + 1]
    needed = {j for i in own for j in logic.ops[i].input_ids} | {*wanted}
    early = [i for i in sorted(needed - {*own}) if logic.ops[i].opcode == CONSTANT]
    kept = [*taken, *early, *own]
    new = {old: place for place, old in enumerate(kept)}
    ops = []
    for old in kept:
        op = logic.ops[old]
        read = {"addr": (), "opcode": INPUT, "data": (taken.get(old),), "latency": 0.0, "cost": 0.0}
        moved = {"addr": tuple(new[i] for i in op.addr)} if old not in taken else read
        ops.append(op._replace(**moved))
    size = logic.shape[0] if first else len(taken)
    return logic._replace(
        shape=(size, len(wanted)),
        inp_shifts=list(logic.inp_shifts) if first else [0] * size,
        out_idxs=[new[i] for i in wanted],
        out_shifts=list(logic.out_shifts) if final else [0] * len(wanted),
        out_negs=list(logic.out_negs) if final else [False] * len(wanted),
        ops=ops,
    )
