"""The squared error of block_fp with `carry` as a ratio to the error without, for kinds of blocks.

python benchmarks/block_exponents.py    # about 15 seconds
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import torch
from tabulate import tabulate
from torch import Tensor
from torch.distributions import Cauchy, StudentT

from chop.numerics.block_fp import BlockFP

WIDTHS = (2, 4, 6, 8)
SIZES = (1, 2, 4, 16, 64)
BLOCKS: dict[str, Callable[[tuple[int, int]], Tensor]] = {
    "normal": torch.randn,
    "uniform": lambda shape: 2 * torch.rand(shape) - 1,
    "Student's t, 3 degrees": lambda shape: StudentT(3.0).sample(shape),
    "Cauchy": lambda shape: Cauchy(0.0, 1.0).sample(shape),
}


def relative_errors(x: Tensor, width: int, carry: bool) -> Tensor:
    """Return the squared error of each row, one block, as a share of its sum of squares."""
    rounded = BlockFP(width, 8, 127, (1, -1), carry)(x)
    return (rounded.double() - x).square().sum(-1) / x.double().square().sum(-1)


def cell(x: Tensor, width: int) -> str:
    """Return the ratio of mean errors of all blocks, and of those that the rules differ in."""
    without, carried = (relative_errors(x, width, carry) for carry in (False, True))
    differ = without != carried
    ratio = carried.mean() / without.mean()
    if not differ.any():
        return f"{ratio:.2f}"
    ratio_there = carried[differ].mean() / without[differ].mean()
    return f"{ratio:.2f} ({differ.double().mean():.0%}: {ratio_there:.2f})"


def rows(numbers: int) -> Iterator[list[str]]:
    for name, sampled in BLOCKS.items():
        for size in SIZES:
            torch.manual_seed(0)
            x = sampled((numbers // size, size))
            yield [name, str(size), *(cell(x, width) for width in WIDTHS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", type=int, default=2**20, help="in all blocks of a row")
    header = ["elements", "block", *(f"width {width}" for width in WIDTHS)]
    print(tabulate(rows(parser.parse_args().numbers), header, "pipe", disable_numparse=True))


if __name__ == "__main__":
    main()
