"""Layers of truth tables."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from chop.integers.codes import Codes
from chop.integers.op import IntegerOp, OnDevices
from chop.integers.scale import Scale

AT_A_TIME = 2**22  # entries that are looked at, or results that are computed, at a time


@dataclass(frozen=True, eq=False)
class NeuronTables(IntegerOp):
    """Each result is an entry of a table, at the index that the codes of a few inputs form.

    The first input is the lowest `width` bits of the index, in two's complement, the second the
    next, and so on. `reads` are positions in a sample, row by row; -1 stands for the code 0, as in
    padding and in tables that read fewer inputs than others.
    """

    tabled = True
    on_grid = True

    reads: Tensor  # [results, inputs]
    chosen: Tensor  # [results]: the table of each result
    tables: Tensor  # [tables, 2^(width · inputs)], int32
    width: int  # bits of an input
    scale: Scale
    shape: tuple[int, ...]  # of the results, without the batch
    kept: OnDevices = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kept = OnDevices(reads=self.reads, chosen=self.chosen, tables=self.tables.flatten())
        object.__setattr__(self, "kept", kept)

    @property
    def num_inputs(self) -> int:
        """The number of inputs of the table that reads most."""
        return self.reads.shape[1]

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        flat = x.flatten(1)
        parts = torch.split(flat, max(1, AT_A_TIME // len(self.reads)))
        return torch.cat([self._looked_up(part) for part in parts]).view(len(x), *self.shape)

    def _looked_up(self, x: Tensor) -> Tensor:
        """[batch, results]: the entries for samples [batch, positions]."""
        reads, chosen = self.kept.get("reads", x), self.kept.get("chosen", x)
        entries = self.kept.get("tables", torch.empty(0, dtype=torch.int32, device=x.device))
        assert reads is not None
        assert chosen is not None
        assert entries is not None
        index = (chosen << self.width * self.num_inputs).expand(len(x), -1)
        for place, column in enumerate(reads.unbind(1)):
            codes = x[:, column.clamp(min=0)] & ((1 << self.width) - 1)
            index = index + (torch.where(column < 0, 0, codes) << place * self.width)
        return entries[index].long()

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        end = 1 << (self.width - (x.lowest < 0))
        assert -end <= x.lowest <= x.highest < end, "codes are wider than the inputs"
        kinds, back = self.reached_intervals(x)
        low, high = torch.empty(len(kinds)).long(), torch.empty(len(kinds)).long()
        step = max(1, AT_A_TIME // self.tables.shape[1])
        for rows in torch.split(torch.arange(len(kinds)), step):
            entries = self.tables[kinds[rows, 0]].long()
            reached = self.reached(kinds[rows])
            low[rows] = torch.where(reached, entries, 2**40).amin(1)
            high[rows] = torch.where(reached, entries, -(2**40)).amax(1)
        return Codes.reaching(
            self.shape, low[back].view(self.shape), high[back].view(self.shape), self.scale
        )

    def reached_intervals(self, x: Codes) -> tuple[Tensor, Tensor]:
        """Return the kinds of results, and the kind of each result.

        A kind is a row of the table's number, and the lowest and highest code of each input.
        """
        low, high = (
            torch.where(self.reads < 0, 0, bound.flatten()[self.reads.clamp(min=0)])
            for bound in x.bounds()
        )
        rows = torch.cat([self.chosen[:, None], low, high], 1)
        kinds, back = torch.unique(rows, dim=0, return_inverse=True)
        return kinds, back

    def reached(self, kinds: Tensor) -> Tensor:
        """[kinds, entries]: whether inputs within the intervals lead to an entry."""
        low, high = torch.split(kinds[:, 1:], self.num_inputs, 1)
        index = torch.arange(self.tables.shape[1])
        found = torch.ones(len(kinds), len(index), dtype=torch.bool)
        for place in range(self.num_inputs):
            digit = (index >> place * self.width) & ((1 << self.width) - 1)
            ends = low[:, place, None], high[:, place, None]
            # as codes without a sign, or with one
            signed = digit - ((digit >> self.width - 1) << self.width)
            codes = torch.where(ends[0] < 0, signed, digit)
            found &= (codes >= ends[0]) & (codes <= ends[1])
        return found

    @property
    def label(self) -> str:
        return f"Tables {self.width * self.num_inputs} bits"
