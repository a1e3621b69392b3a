"""The longest path between registers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from chop.hardware.synthesis.netlist import Cell, Net

__all__ = ["depths"]


@dataclass(frozen=True)
class _Gate:
    """A function without memory: `chained` inputs come from the same carry chain."""

    layer: str | None
    inputs: tuple[Net, ...]
    chained: tuple[Net, ...]
    outputs: tuple[Net, ...]


def depths(cells: Iterable[Cell]) -> dict[str | None, int]:
    """Return the largest number of levels up to a cell of each layer.

    Registers, memories, multipliers and ports begin and end a path.
    """
    gates = [gate for cell in cells for gate in _gates(cell)]
    driver = {net: i for i, gate in enumerate(gates) for net in gate.outputs}
    readers: dict[int, list[int]] = defaultdict(list)
    waiting = [0] * len(gates)
    for i, gate in enumerate(gates):
        for source in {driver[n] for n in (*gate.inputs, *gate.chained) if n in driver}:
            readers[source].append(i)
            waiting[i] += 1
    level: dict[Net, int] = {}
    found: dict[str | None, int] = {}
    ready = [i for i, count in enumerate(waiting) if not count]
    while ready:
        i = ready.pop()
        gate = gates[i]
        before = [level.get(n, 0) + 1 for n in gate.inputs] + [
            level.get(n, 0) for n in gate.chained
        ]
        own = max(before, default=0)
        level.update(dict.fromkeys(gate.outputs, own))
        found[gate.layer] = max(found.get(gate.layer, 0), own)
        for reader in readers[i]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return found


def _gates(cell: Cell) -> Iterator[_Gate]:
    if cell.kind.startswith("CARRY"):
        yield from _carry_of_xilinx(cell)
    elif cell.kind == "CCU2C":
        yield from _carry_of_ecp5(cell)
    elif cell.kind.startswith(("LUT", "MUXF", "INV", "PFUMX", "L6MUX21")):
        yield _Gate(cell.layer, _nets(cell.inputs), (), _nets(cell.nets(*cell.outputs)))


def _carry_of_xilinx(cell: Cell) -> Iterator[_Gate]:
    chained = _nets(cell.nets("CI"))
    first = _nets(cell.nets("CYINIT", "CI_TOP"))
    for bits in zip(*(cell.pins[pin] for pin in ("S", "DI", "O", "CO")), strict=True):
        inputs, outputs = _nets(bits[:2]), _nets(bits[2:])
        yield _Gate(cell.layer, inputs + first, chained, outputs)
        chained, first = outputs[-1:], ()


def _carry_of_ecp5(cell: Cell) -> Iterator[_Gate]:
    carry = _nets(cell.nets("CIN"))
    low = _nets(cell.nets("A0", "B0", "C0", "D0"))
    high = _nets(cell.nets("A1", "B1", "C1", "D1"))
    yield _Gate(cell.layer, low, carry, _nets(cell.nets("S0")))
    yield _Gate(cell.layer, low + high, carry, _nets(cell.nets("S1", "COUT")))


def _nets(nets: Iterable[Net]) -> tuple[Net, ...]:
    return tuple(net for net in nets if isinstance(net, int))
