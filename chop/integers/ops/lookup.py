"""Any function of a code as a table."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from chop.integers.codes import Codes, Word
from chop.integers.op import IntegerOp


@dataclass(frozen=True, eq=False)
class Lookup(IntegerOp):
    """A table with one entry per code of the input: any function, rounded to a word."""

    tabled = True
    rounds = True

    entries: Tensor
    lowest: int
    word: Word

    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return self.entries.to(x.device)[x - self.lowest]

    def result(self, *codes: Codes) -> Codes:
        (x,) = codes
        reached = self.entries[x.lowest - self.lowest : x.highest - self.lowest + 1]
        return self.word.codes(x.shape, reached.min(), reached.max())

    @property
    def label(self) -> str:
        return f"Table {len(self.entries)}"
