"""The logic of a layer: traced once, and kept by content, in this process and on disk."""

from __future__ import annotations

import hashlib
import logging
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from chop.hardware.tools import ToolError
from chop.hardware.unrolled import symbols
from chop.hardware.unrolled.checking import expected_codes, logic_codes, random_codes
from chop.hardware.unrolled.layers import Layer
from chop.hardware.unrolled.logic_cache import (
    decoded,
    encoded,
    entry_of,
    packages_in_key,
    read_entry,
    write_entry,
)
from chop.hardware.unrolled.registry import UNROLLED
from chop.hardware.unrolled.stages import CONSTANT, Logic, Schedule, only_wires, scheduled, split
from chop.integers import Codes, IntegerGraph, TooWide
from chop.integers.digest import content
from chop.system.caches import Lru

__all__ = ["LayerLogic", "forget_logic", "layer_logic"]

logger = logging.getLogger(__name__)

MAX_KEPT = 256
VECTORS = 32  # random ones, with which logic is checked


@dataclass(frozen=True, eq=False)
class LayerLogic:
    """The optimised logic of a layer, before it is cut into pipeline stages.

    `logic` computes the results that vary; `constants` are the others, by their place among all
    codes of all outputs.
    """

    logic: Logic
    constants: dict[int, int]
    schedules: dict[float, Schedule] = field(default_factory=dict, repr=False)

    @property
    def cost(self) -> float:
        """The LUTs that alkaid expects."""
        return float(self.logic.cost)

    @cached_property
    def delay(self) -> float:
        """The longest path, in ns."""
        return self.schedule(math.inf).longest

    def schedule(self, period: float) -> Schedule:
        """Return in which stage each op is computed, for a clock period in ns."""
        if period not in self.schedules:
            self.schedules[period] = scheduled(self.logic, period)
        return self.schedules[period]

    def stages(self, period: float) -> list[Logic]:
        """Return the logic of each stage; a register follows each, unless there are only wires.

        There are none where no result varies.
        """
        return split(self.logic, self.schedule(period)) if self.logic.out_idxs else []

    def latency(self, period: float) -> int:
        """Return the clock cycles from inputs to results; wires take none."""
        return 0 if only_wires(self.logic) else self.schedule(period).count

    def register_bits(self, period: float) -> int:
        """Return the flip-flops of all stages."""
        if not self.latency(period):
            return 0
        return sum(int(stage.out_kifs.sum()) for stage in self.stages(period))


_kept: Lru[str, LayerLogic] = Lru(MAX_KEPT)


def layer_logic(graph: IntegerGraph, layer: Layer) -> LayerLogic:
    """Return the logic of a layer; layers of equal content are traced once."""
    key = _key(graph, layer)
    return _kept.get_or(key, lambda: _from_disk(graph, layer, key) or _new(graph, layer, key))


def forget_logic() -> None:
    """Empty the cache of this process; what is on disk stays."""
    _kept.clear()


def _new(graph: IntegerGraph, layer: Layer, key: str) -> LayerLogic:
    """Return the logic of a layer that is not known yet, and keep it on disk."""
    made = _fixed(layer) if not layer.inputs else _varying(graph, layer)
    # as it will be read, so that emitted files do not depend on where the logic came from
    told = encoded(made.logic, made.constants)
    made = LayerLogic(*decoded(told))
    _check(graph, layer, made)
    if _is_ours(layer):
        write_entry(entry_of(key), told)
    return made


def _from_disk(graph: IntegerGraph, layer: Layer, key: str) -> LayerLogic | None:
    """Return the logic that was kept on disk, if it is there and right."""
    if not _is_ours(layer):
        return None
    file = entry_of(key)
    known = read_entry(file)
    if known is None:
        return None
    made = LayerLogic(*known)
    try:
        _check(graph, layer, made)
    except (ToolError, ValueError, IndexError, RuntimeError) as error:
        logger.warning("%s is wrong (%s); computing it again", file, error)
        return None
    return made


def _is_ours(layer: Layer) -> bool:
    """Return whether all ops and their functions are in packages whose code is in the key."""
    ops = [type(node.op) for node in layer.nodes]
    homes = [home for op in ops for home in (op, UNROLLED[op].function)]
    return all(home.__module__.startswith(packages_in_key()) for home in homes)


def _traced(graph: IntegerGraph, layer: Layer) -> Logic:
    from alkaid.trace import trace

    known = {name: symbols.inputs(graph.codes(name)) for name in layer.inputs}
    given = [x for name in layer.inputs for x in symbols.flat(known[name])]
    for node in layer.nodes:
        codes = [*(graph.codes(i) for i in node.inputs), node.codes]
        try:
            array = UNROLLED[type(node.op)].function(
                node.op, [known[i] for i in node.inputs], codes
            )
        except TooWide as error:
            raise TooWide(f"{node.name} {error}") from error
        known[node.name] = symbols.bounded(array, node.codes)
    results = [x for name in layer.outputs for x in symbols.flat(known[name])]
    return trace(given, results)


def _fixed(layer: Layer) -> LayerLogic:
    """Return the logic of a layer without inputs, which has none."""
    from alkaid.types import CombLogic

    values = expected_codes(layer, {})[0].tolist()
    adder_size, carry_size, _ = symbols.HARDWARE
    return LayerLogic(
        CombLogic((0, 0), [], [], [], [], [], carry_size, adder_size), dict(enumerate(values))
    )


def _varying(graph: IntegerGraph, layer: Layer) -> LayerLogic:
    """Return the logic of results that vary; the bounds know best which do not."""
    logic = _traced(graph, layer)
    ends = [graph.codes(name).bounds() for name in layer.outputs]
    low, high = (torch.cat([pair[i].flatten() for pair in ends]).tolist() for i in (0, 1))
    constants, varying = {}, []
    for place, i in enumerate(logic.out_idxs):
        if low[place] == high[place]:
            constants[place] = low[place]
        elif i < 0 or logic.ops[i].opcode == CONSTANT:
            value = 0.0 if i < 0 else logic.ops[i].qint.min * 2.0 ** logic.out_shifts[place]
            constants[place] = int(-value if logic.out_negs[place] else value)
        else:
            varying.append(place)
    kept = {
        name: [getattr(logic, name)[place] for place in varying]
        for name in ("out_idxs", "out_shifts", "out_negs")
    }
    shape = (logic.shape[0], len(varying))
    return LayerLogic(logic._replace(shape=shape, **kept), constants)


def _check(graph: IntegerGraph, layer: Layer, made: LayerLogic) -> None:
    """Refuse logic that does not compute what the integer ops do, on a few vectors."""
    inputs = random_codes(graph, layer, VECTORS)
    results = logic_codes(layer, made.logic, made.constants, inputs)
    wrong = int((results != expected_codes(layer, inputs)).sum())
    if wrong:
        raise ToolError(
            f"the logic that alkaid traced for {layer.name} gives {wrong} wrong results out of "
            f"{results.numel()}; use other formats there, and report this network"
        )


def _key(graph: IntegerGraph, layer: Layer) -> str:
    """Return a checksum of all that the logic depends on; names do not count."""
    numbers = {name: i for i, name in enumerate(layer.inputs)}
    parts: list[Any] = [_bounds(graph.codes(name)) for name in layer.inputs]
    for node in layer.nodes:
        numbers[node.name] = len(numbers)
        parts += [[numbers[i] for i in node.inputs], node.op, _bounds(node.codes)]
    parts.append([numbers[name] for name in layer.outputs])
    return hashlib.sha256(b"".join(content(parts))).hexdigest()


def _bounds(codes: Codes) -> list[Any]:
    """Return what logic depends on: a scale is not part of it."""
    return [codes.shape, *codes.bounds()]
