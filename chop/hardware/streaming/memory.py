"""Memories of constants: a module with the words in it, and the same words as a file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from chop.hardware.streaming.stream import Places

__all__ = ["Memory"]

ROWS_AT_ONCE = 4096  # that are converted to text, to bound the memory for their bits


@dataclass(frozen=True, eq=False)
class Memory:
    """Codes that a component reads: one row per word, the first code in the lowest bits."""

    name: str  # of the parameter, such as weight
    rows: Places
    width: int  # bits of a code
    ports: int = 1  # words that are read at once

    @property
    def depth(self) -> int:
        """The number of words."""
        return len(self.rows)

    @property
    def word_bits(self) -> int:
        return int(self.rows.shape[1]) * self.width

    @property
    def bits(self) -> int:
        """The size of the memory."""
        return self.depth * self.word_bits

    @property
    def address_bits(self) -> int:
        return address_bits(self.depth)

    @cached_property
    def words(self) -> list[str]:
        """The words in hexadecimal."""
        parts = np.array_split(self.rows, -(-self.depth // ROWS_AT_ONCE))
        return [word for part in parts for word in hexadecimal(part, self.width)]

    def source(self, module: str) -> str:
        """Return the module: a synchronous memory whose contents stand in the text.

        Every tool finds them, whatever its working directory is.
        """
        digits = len(str(self.depth - 1))
        contents = "\n".join(
            f"        rom[{number:{digits}}] = {self.word_bits}'h{word};"
            for number, word in enumerate(self.words)
        )
        return (SOURCE if self.ports == 1 else SHARED).format(
            module=module,
            name=self.name,
            codes=self.rows.shape[1],
            width=self.width,
            word=self.word_bits - 1,
            address=self.address_bits - 1,
            ports=self.ports,
            size=self.word_bits,
            address_size=self.address_bits,
            words=self.ports * self.word_bits - 1,
            addresses=self.ports * self.address_bits - 1,
            last=self.depth - 1,
            contents=contents,
        )

    def data(self) -> str:
        """Return the words as a file for $readmemh."""
        return "\n".join(self.words) + "\n"


SOURCE = """\
// {name}: {codes} codes of {width} bits per word
module {module} (
    input  logic clk,
    input  logic enable,
    input  logic [{address}:0] address,
    output logic [{word}:0] data
);
    logic [{word}:0] rom [0:{last}];
    initial begin
{contents}
    end
    always_ff @(posedge clk) if (enable) data <= rom[address];
endmodule
"""


SHARED = """\
// {name}: {codes} codes of {width} bits per word, {ports} words at once
module {module} (
    input  logic clk,
    input  logic enable,
    input  logic [{addresses}:0] address,
    output logic [{words}:0] data
);
    logic [{word}:0] rom [0:{last}];
    initial begin
{contents}
    end
    for (genvar i = 0; i < {ports}; i++) begin : port
        always_ff @(posedge clk)
            if (enable)
                data[i*{size} +: {size}] <= rom[address[i*{address_size} +: {address_size}]];
    end
endmodule
"""


def address_bits(depth: int) -> int:
    """Return the bits of the address of a memory."""
    return max(1, (depth - 1).bit_length())


def hexadecimal(rows: Places, width: int) -> list[str]:
    """Return each row as one number in hexadecimal, with the first code in the lowest bits.

    >>> hexadecimal(np.array([[1, -2, 3]]), 3)
    ['0f1']
    """
    places = np.arange(width, dtype=np.int64)
    bits = ((rows[..., None] >> places) & 1).astype(np.uint8).reshape(len(rows), -1)
    packed = np.packbits(bits, axis=1, bitorder="little")[:, ::-1]
    digits = -(-bits.shape[1] // 4)
    return [row.tobytes().hex()[-digits:] for row in packed]


def repeating(rows: Places) -> Places:
    """Return the shortest run of rows that gives all of them when it is repeated.

    >>> repeating(np.array([[1], [2], [1], [2]])).tolist()
    [[1], [2]]
    """
    count = len(rows)
    for length in (n for n in range(1, count + 1) if count % n == 0):
        if np.array_equal(rows, np.tile(rows[:length], (count // length, 1))):
            return rows[:length]
    return rows
