"""Time of each statistic over 200 batches, as a ratio to one `sum` over each batch.

python benchmarks/stat_updates.py
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor

from chop.passes.graph.analysis.statistical_profiler.stat import STAT_NAME_TO_CLS, create_new_stat

NUM_BATCHES, BATCH_SHAPE, NUM_RUNS = 200, (256, 64), 7
DIMS: tuple[str | None, ...] = ("all", None)


def seconds(work: Callable[[], object]) -> float:
    """Median time of one call, after one to warm up."""
    work()
    times = []
    for _ in range(NUM_RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return sorted(times)[NUM_RUNS // 2]


def profile(name: str, batches: list[Tensor], options: dict[str, Any]) -> None:
    stat = create_new_stat(name, **options)
    for batch in batches:
        stat.update_a_batch(batch)
    stat.compute()


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(BATCH_SHAPE, generator=generator) for _ in range(NUM_BATCHES)]
    plain = seconds(lambda: [batch.sum() for batch in batches])
    rows = []
    for name in STAT_NAME_TO_CLS:
        choices: list[dict[str, Any]] = [{"dims": dims} for dims in DIMS]
        for options in [{}] if name == "record" else choices:
            took = seconds(lambda: profile(name, batches, options))  # noqa: B023
            rows.append((name, options.get("dims", "-"), took * 1e3, took / plain))
    print(f"{NUM_BATCHES} batches of {BATCH_SHAPE}; x.sum() of each takes {plain * 1e3:.2f} ms")
    headers = ("statistic", "dims", "ms", "x.sum()")
    print(tabulate(rows, headers, floatfmt=".1f", missingval="None"))


if __name__ == "__main__":
    main()
