"""Time of a training step with all threads, as a ratio to one thread, for small and large work.

python benchmarks/threads.py [--repeats N]
"""

import argparse
import itertools
import statistics
import time

import torch
from tabulate import tabulate
from torch import nn

from chop.training.devices import SMALL, fixed_threads

WIDTHS = (16, 64, 256, 1024)  # of a network with three hidden layers
BATCHES = (64, 512, 4096)
MOST = 1_000_000_000  # batch size times parameters
BLOCK = 0.005  # seconds of steps between two changes of the number of threads


def network(width: int) -> nn.Sequential:
    """A network for 16 features and 5 classes."""
    sizes = (16, width, width, width, 5)
    layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*(layer for pair in layers for layer in pair))


class Steps:
    """Training steps of one network on one batch."""

    def __init__(self, width: int, batch: int) -> None:
        self.model = network(width)
        self.work = batch * sum(p.numel() for p in self.model.parameters())
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.x, self.y = torch.randn(batch, 16), torch.randint(5, (batch,))

    def seconds(self, count: int) -> float:
        """Time of one of `count` steps."""
        start = time.perf_counter()
        for _ in range(count):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(self.x), self.y).backward()
            self.optimizer.step()
        return (time.perf_counter() - start) / count


def measured(steps: Steps, threads: int, repeats: int) -> tuple[list[float], list[float]]:
    """Milliseconds of steps with one thread and with all, measured alternately."""
    with fixed_threads(1):
        steps.seconds(2)
        count = max(1, round(BLOCK / steps.seconds(3)))
    times: dict[int, list[float]] = {1: [], threads: []}
    for _ in range(repeats):
        for number, found in times.items():
            with fixed_threads(number):
                found.append(steps.seconds(count) * 1e3)
    return times[1], times[threads]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    threads, rows = torch.get_num_threads(), []
    cases = [Steps(width, batch) for width in WIDTHS for batch in BATCHES]
    for steps in sorted(cases, key=lambda steps: steps.work):
        if steps.work <= MOST:
            one, several = measured(steps, threads, args.repeats)
            ratios = [f(several) / f(one) for f in (statistics.median, min)]
            facts = (steps.work, len(steps.x), steps.work // len(steps.x))
            rows.append((*facts, statistics.median(one), statistics.median(several), *ratios))
    print(f"one thread is used below {SMALL:,} (batch times parameters)")
    times = ("1 thread, ms", f"{threads} threads, ms")
    headers = ("work", "batch", "parameters", *times, "ratio", "of the fastest")
    print(tabulate(rows, headers, intfmt=",", floatfmt=("", "", "", ".3f", ".3f", ".2f", ".2f")))


if __name__ == "__main__":
    main()
