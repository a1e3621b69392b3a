"""Layers of truth tables on edges: each edge rounds its input, and outputs add up entries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor

from chop.integers.codes import Codes, bits_for
from chop.integers.op import IntegerOp, OnDevices
from chop.integers.ops.requantize import QuantizeInput
from chop.integers.rounding import SINGLE, rounded_shifts
from chop.integers.scale import Scale
from chop.numerics.grid import Overflow, Rounding

AT_A_TIME = 2**22  # entries that are looked up at a time
NEVER = 2**60  # in the place of entries that no input reaches


@dataclass(frozen=True, eq=False)
class QuantizeFeatures(QuantizeInput):
    """Floats to codes of a word, of which each feature uses a range of its own."""

    low: Tensor | None = None
    high: Tensor | None = None

    def run(self, *inputs: Tensor) -> Tensor:
        codes, (low, high) = super().run(*inputs), self._ends()
        return torch.minimum(torch.maximum(codes, low.to(codes.device)), high.to(codes.device))

    def result(self, *codes: Codes) -> Codes:
        low, high = self._ends()
        return self.word.codes(self.shape, low.expand(self.shape), high.expand(self.shape))

    def _ends(self) -> tuple[Tensor, Tensor]:
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high


@dataclass(frozen=True, eq=False)
class EdgeRounding:
    """How all edges of a layer round their inputs: to codes of widths of their own."""

    width: Tensor  # [edges]
    exponent: Tensor  # [edges]: of the step
    signed: bool = True
    rounding: Rounding = "floor"
    overflow: Overflow = "saturate"

    @property
    def size(self) -> Tensor:
        """The number of codes of each edge."""
        return torch.ones_like(self.width) << self.width

    @property
    def first(self) -> Tensor:
        """The code of the first entry of each edge."""
        return -self.size // 2 if self.signed else torch.zeros_like(self.width)

    @property
    def lowest(self) -> Tensor:
        """The lowest code that each edge rounds to."""
        return self.first + int(self.overflow == "symmetric" and self.signed)

    def places(self, x: Tensor, exponent: Tensor) -> Tensor:
        """Return the places in their tables of codes [..., edges] in steps of 2^exponent."""
        shift = (self.exponent - exponent).to(x.device)
        dropped = rounded_shifts(x, shift.clamp(0, 63), self.rounding)
        # a code that is shifted beyond all widths has lost nothing but its size
        left = (-shift).clamp(0, 40)
        near = x.clamp(-(2**20), 2**20) if self.overflow != "wrap" else x & (2**20 - 1)
        codes = torch.where(shift < 0, near << left, dropped)
        first, size, lowest = (t.to(x.device) for t in (self.first, self.size, self.lowest))
        if self.overflow == "wrap":
            return (codes - first) & (size - 1)
        return torch.minimum(torch.maximum(codes, lowest) - first, size - 1)

    def kept(self, edges: Tensor) -> EdgeRounding:
        """Return the rounding of some of the edges."""
        return replace(self, width=self.width[edges], exponent=self.exponent[edges])


@dataclass(frozen=True, eq=False)
class EdgeTables(IntegerOp):
    """Each output is a bias plus an entry per edge, at the rounded code of the edge's input.

    Features are the last dimension. Entries are on the grid of the outputs. Once the codes of the
    input are known, edges on which only one entry is reached become part of the bias, and so does
    a constant part of others if the rest then has fewer bits.
    """

    accumulates = True
    # A LUT before a carry chain holds a table, too, and saturations have few bits. Fitted as ADDERS
    # of the estimates, to four networks with seeds from 2000 and five trained designs
    # (`--front mase_output/jsc_learned`), with too few tables of more than five inputs to fit them.
    luts = MappingProxyType({"adder": 0.743, "inverted": 0.481, "reduced": 1.654, "table": 0.873})

    reads: Tensor  # [edges]: the input of each
    writes: Tensor  # [edges]: the output of each
    rounding: EdgeRounding
    tables: Tensor  # [edges, codes]
    bias: Tensor  # [outputs]
    scale: Scale
    exponent: Tensor | None = None  # of the steps of the inputs: [edges]
    kept: OnDevices = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kept = OnDevices(reads=self.reads, writes=self.writes, tables=self.tables, bias=self.bias)
        object.__setattr__(self, "kept", kept)

    def fitted(self, *codes: Codes) -> Self:
        (x,) = codes
        if not x.scale.power_of_two:
            raise ValueError("its input has steps that are not powers of two; use fixed point")
        steps = x.scale.exponent.expand(x.shape).reshape(-1, x.shape[-1])
        if not bool((steps == steps[0]).all()):
            raise ValueError(
                "its input has steps that differ within a feature; use one per feature"
            )
        op = replace(self, exponent=steps[0][self.reads])
        least, most = op.reached_entries(x)
        return op._with_offsets(least, most)

    def reached(self, x: Codes) -> Tensor:
        """[edges, codes]: whether inputs of these descriptions lead to an entry."""
        low, high = (bound.reshape(-1, x.shape[-1]) for bound in x.bounds())
        ends = torch.stack([low.amin(0)[self.reads], high.amax(0)[self.reads]])
        assert self.exponent is not None
        first, last = self.rounding.places(ends, self.exponent)
        places = torch.arange(self.tables.shape[1])
        inside: Tensor = places < self.rounding.size[:, None]
        if self.rounding.overflow == "wrap":
            count = ends[1] - ends[0] + 1
            shift = (self.rounding.exponent - self.exponent).clamp(0, 40)
            whole = (count >> shift) + 2 >= self.rounding.size
            between = (places >= first[:, None]) & (places <= last[:, None])
            wrapped = (places >= first[:, None]) | (places <= last[:, None])
            found = torch.where((first <= last)[:, None], between, wrapped)
            return inside.logical_and(found | whole[:, None])
        return inside.logical_and((places >= first[:, None]) & (places <= last[:, None]))

    def reached_entries(self, x: Codes) -> tuple[Tensor, Tensor]:
        """[edges]: the lowest and the highest entry that inputs lead to."""
        if not len(self.reads):
            return self.reads, self.reads
        found = self.reached(x)
        low = torch.where(found, self.tables, NEVER).amin(1)
        return low, torch.where(found, self.tables, -NEVER).amax(1)

    def _with_offsets(self, least: Tensor, most: Tensor) -> Self:
        """Return the op with constant parts of tables in the bias, and without constant tables."""
        spans = (most - least).tolist()
        offsets, rest = least.tolist(), self.bias.tolist()
        for edge, output in enumerate(self.writes.tolist()):
            rest[output] += offsets[edge]
        order = sorted(range(len(spans)), key=lambda edge: -spans[edge])
        added = [0] * len(spans)
        for edge in order:
            if spans[edge]:
                output = int(self.writes[edge])
                added[edge] = _part(rest[output], spans[edge])
                rest[output] -= added[edge]
        change = torch.tensor(added, dtype=torch.int64) - least
        live = torch.tensor([span > 0 for span in spans], dtype=torch.bool)
        assert self.exponent is not None
        return replace(
            self,
            reads=self.reads[live],
            writes=self.writes[live],
            rounding=self.rounding.kept(live),
            tables=(self.tables + change[:, None])[live],
            bias=torch.tensor(rest, dtype=torch.int64),
            exponent=self.exponent[live],
        )

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        rows = x.reshape(-1, x.shape[-1])
        parts = torch.split(rows, max(1, AT_A_TIME // max(1, len(self.reads))))
        sums = torch.cat([self._sums(part) for part in parts])
        return sums.view(*x.shape[:-1], len(self.bias))

    def _sums(self, x: Tensor) -> Tensor:
        reads, writes, tables, bias = (
            self.kept.get(name, x) for name in ("reads", "writes", "tables", "bias")
        )
        assert reads is not None
        assert writes is not None
        assert tables is not None
        assert bias is not None
        assert self.exponent is not None
        places = self.rounding.places(x[:, reads], self.exponent)
        edges = torch.arange(len(reads), device=x.device)
        entries = tables.flatten()[edges * tables.shape[1] + places]
        return bias.expand(len(x), -1).index_add(1, writes, entries)

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        low, high = (
            self.bias.index_add(0, self.writes, entries) for entries in self.reached_entries(x)
        )
        shape = (*x.shape[:-1], len(self.bias))
        return Codes.reaching(shape, low.expand(shape), high.expand(shape), self.scale)

    def exact_in_float(self, *codes: Codes) -> bool:
        (x,) = codes
        return x.largest <= SINGLE and self.result(x).largest <= SINGLE

    @property
    def label(self) -> str:
        return f"EdgeTables {len(self.reads)}"


def _part(wanted: int, span: int) -> int:
    """Return the lowest entry, nearest to `wanted`, of a table of so many bits as its span needs.

    >>> _part(-20, 7), _part(-3, 5), _part(9, 5)
    (-4, -3, 2)
    """
    bits = bits_for(0, span)
    signed = max(-(1 << (bits - 1)), min(wanted, (1 << (bits - 1)) - 1 - span))
    plain = max(0, min(wanted, (1 << bits) - 1 - span))
    return min(signed, plain, key=lambda part: abs(wanted - part))
