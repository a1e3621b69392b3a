"""Sums of several terms, written in four ways: the LUTs that yosys packs.

    python benchmarks/sums.py                                # sums of 3, 6, 9 and 12 terms
    python benchmarks/sums.py --terms 3 6 --inputs 4         # terms are tables of four inputs

The terms are numbers of `--bits` bits without sign: ports, or truth tables of `--inputs` inputs
with random entries. `plus` is one expression, a + b + c + …; yosys makes a tree of compressors and
one adder of it, however it is bracketed. `kept` is a tree of two-term adders that yosys is told to
keep. `3:2` has rows of full adders, of which both outputs share a LUT, and one adder at the end;
`6:3` counts up to six bits of a column with three tables, and has one adder at the end.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import defaultdict
from pathlib import Path

from tabulate import tabulate

from chop.hardware.synthesis.count import count_cells
from chop.hardware.synthesis.netlist import flat_cells
from chop.hardware.synthesis.programs import find_yosys
from chop.hardware.synthesis.synthesize import MAP

Columns = dict[int, list[str]]  # the bits of each place
WAYS = ("plus", "kept", "3:2", "6:3")


class Sum:
    """The Verilog of a sum, which grows line by line."""

    def __init__(self, terms: int, bits: int, inputs: int, seed: int = 0) -> None:
        source = random.Random(seed)
        self.bits, self.lines, self.count = bits, list[str](), 0
        self.width = (terms * (2**bits - 1)).bit_length()
        self.ports = [f"input [{(inputs or bits) - 1}:0] x{i}" for i in range(terms)]
        self.ports.append(f"output [{self.width - 1}:0] y")
        self.terms = [f"x{i}" for i in range(terms)]
        if inputs:
            self.terms = [self._table(x, inputs, source) for x in self.terms]

    def _table(self, x: str, inputs: int, source: random.Random) -> str:
        rows = (f"{i}: t_{x} = {source.randrange(2**self.bits)};" for i in range(2**inputs))
        self.lines.append(f"reg [{self.bits - 1}:0] t_{x};")
        self.lines.append(f"always @(*) case ({x}) {' '.join(rows)} endcase")
        return f"t_{x}"

    def wire(self, width: int, value: str, keep: bool = False) -> str:
        """Add a wire, and return its name."""
        self.count += 1
        mark = "(* keep *) " if keep else ""
        self.lines.append(f"{mark}wire [{width - 1}:0] w{self.count} = {value};")
        return f"w{self.count}"

    def kept(self) -> str:
        """Return a tree of adders of two terms, the narrowest first."""
        rows = [(self.bits, term) for term in self.terms]
        while len(rows) > 1:
            (_, one), (width, other), *rest = sorted(rows, key=lambda row: row[0])
            both = self.wire(width + 1, f"{one} + {other}", keep=True)
            rows = [*rest, (width + 1, both)]
        return rows[0][1]

    def compressed(self, most: int) -> str:
        """Return the sum of columns in which up to `most` bits are counted at once."""
        columns: Columns = {i: [f"{t}[{i}]" for t in self.terms] for i in range(self.bits)}
        while max(map(len, columns.values())) > 2:
            columns = self._counted(columns, most)
        rows = []
        for row in range(2):
            bits = [[*columns.get(i, []), "1'b0", "1'b0"][row] for i in reversed(range(self.width))]
            rows.append(self.wire(self.width, f"{{{', '.join(bits)}}}"))
        return " + ".join(rows)

    def _counted(self, columns: Columns, most: int) -> Columns:
        """Return columns in which groups of at least three bits are replaced by their number."""
        after: Columns = defaultdict(list)
        for place, bits in columns.items():
            while len(bits) > 2:
                size = most if len(bits) >= most else 3
                group, bits = bits[:size], bits[size:]
                index = self.wire(size, f"{{{', '.join(group)}}}")
                for k in range(size.bit_length()):
                    ones = (str(i.bit_count() >> k & 1) for i in reversed(range(2**size)))
                    entries = self.wire(2**size, f"{2**size}'b{''.join(ones)}")
                    after[place + k].append(self.wire(1, f"{entries}[{index}]"))
            after[place] += bits
        return after

    def text(self, way: str) -> str:
        """Return the module."""
        if way == "plus":
            result = " + ".join(self.terms)
        else:
            result = self.kept() if way == "kept" else self.compressed(int(way[0]))
        lines = [f"module sum({', '.join(self.ports)});", *self.lines, f"assign y = {result};"]
        return "\n".join([*lines, "endmodule", ""])


def packed_luts(text: str) -> int:
    """Return the LUTs of a module, where two small functions share one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sum.v").write_text(text)
        script = f"read_verilog sum.v\n{MAP['xilinx']} -top sum\nwrite_json sum.json\n"
        (folder / "synth.ys").write_text(script)
        find_yosys().run("-v", "3", "-s", "synth.ys", log=folder / "log", folder=folder)
        cells = flat_cells(json.loads((folder / "sum.json").read_text()), "sum", {})
    return count_cells(cells, "xilinx", {})[1].packed_luts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--terms", type=int, nargs="+", default=[3, 6, 9, 12])
    parser.add_argument("--bits", type=int, default=5)
    parser.add_argument("--inputs", type=int, nargs="+", default=[0], help="0: terms are ports")
    args = parser.parse_args()
    rows = []
    for inputs in args.inputs:
        for terms in args.terms:
            made = {way: Sum(terms, args.bits, inputs).text(way) for way in WAYS}
            counts = {way: packed_luts(text) for way, text in made.items()}
            rows.append({"inputs": inputs or "ports", "terms": terms, **counts})
    print(tabulate(rows, headers="keys", tablefmt="github"))


if __name__ == "__main__":
    main()
