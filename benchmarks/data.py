"""How long a data set takes to start: the first time, and from the cache.

python benchmarks/data.py                   # a million jets, as HDF5 and as ARFF
python benchmarks/data.py --rows 100000

A start is all three splits of the set, ready to train on. Every start is a process of its own, so
that nothing is warm but the disk; the time to start torch is left out. The first start also
writes the cache; it is done once, the second one `--repeats` times (median).
"""

from __future__ import annotations

import argparse
import runpy
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from tabulate import tabulate

LAYOUTS = Path(__file__).parents[1] / "tests" / "dataset" / "layouts.py"
START = """
import sys, time
import torch
from chop.dataset import DATASETS, get_dataset
name, path, cache = sys.argv[1:]
DATASETS[name]
torch.ones(1 << 20).sum()  # starts torch's threads
begin = time.perf_counter()
splits = [get_dataset(name, s, path=path, cache=cache) for s in ("train", "validation", "test")]
ready = time.perf_counter() - begin
for split in splits:
    split.x.sum(), split.y.sum()
read = time.perf_counter() - begin
print(ready, read, sum(map(len, splits)))
"""


def start(name: str, file: Path, cache: Path) -> list[float]:
    """Seconds until ready, seconds until every value was read once, rows."""
    command = [sys.executable, "-c", START, name, str(file), str(cache)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(number) for number in done.stdout.split()]


def median_of(repeats: int, name: str, file: Path, cache: Path) -> list[float]:
    runs = [start(name, file, cache) for _ in range(repeats)]
    return [statistics.median(column) for column in zip(*runs, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    layouts = SimpleNamespace(**runpy.run_path(str(LAYOUTS)))
    jets = layouts.some_jets(arguments.rows)
    table = []
    with tempfile.TemporaryDirectory() as folder:
        files = {
            "jsc": layouts.write_cernbox(Path(folder) / "jets.h5", jets),
            "jsc-openml": layouts.write_arff(Path(folder) / "jets.arff", jets),
        }
        for name, file in files.items():
            cache = Path(folder) / f"cache of {name}"
            first = start(name, file, cache)
            again = median_of(arguments.repeats, name, file, cache)
            table.append(
                {
                    "data set": name,
                    "file": f"{file.suffix[1:]}, {file.stat().st_size / 1e6:.0f} MB",
                    "rows": int(first[2]),
                    "first start": f"{first[0]:.2f} s",
                    "from the cache": f"{again[0] * 1e3:.1f} ms",
                    "ratio": f"{first[0] / again[0]:.0f}×",
                    "with every value read": f"{again[1] * 1e3:.0f} ms",
                    "ratio ": f"{first[1] / again[1]:.0f}×",
                }
            )
    print(tabulate(table, headers="keys", tablefmt="github"))


if __name__ == "__main__":
    main()
