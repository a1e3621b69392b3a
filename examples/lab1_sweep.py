"""Lab 1: the effect of batch size, learning rate and epochs on a small network, in two minutes.

    python examples/lab1_sweep.py    # prints a table, writes mase_output/lab1_sweep/curves.svg
    python examples/lab1_sweep.py --epochs 20 --model jsc-s --dataset jsc

Accuracies are means over several seeds: the last ReLU of jsc-tiny can switch off a class for good,
so single runs differ a lot. The default data set is simulated; its scores are not JSC results.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from tabulate import tabulate

from chop.charts import Chart, page
from chop.dataset import MaseDataModule
from chop.models import get_model
from chop.training.loop import Training
from chop.training.options import TrainOptions

BATCHES = (32, 64, 128, 256, 512, 1024, 2048)
RATES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


Points = list[tuple[float, float]]


class Accuracies:
    """Stores the validation accuracy of each epoch."""

    def __init__(self) -> None:
        self.points: Points = []

    def log_metrics(self, metrics, step) -> None:
        if "val_acc_epoch" in metrics:
            self.points.append((metrics["epoch"] + 1, metrics["val_acc_epoch"]))


def run(args, seed: int, batch_size: int, options: TrainOptions) -> Points:
    """Train once and return the validation accuracy of each epoch."""
    torch.manual_seed(seed)
    data = MaseDataModule(args.dataset, batch_size=batch_size)
    data.setup("fit")
    model = get_model(args.model, task="cls", dataset_info=data.dataset_info)
    seen = Accuracies()
    Training(model, data, options, visualizers=[seen]).fit()
    return seen.points


def mean_run(args, *, batch_size: int, rate: float, epochs: int) -> tuple[Points, tuple]:
    """Return the mean accuracies over the seeds, and a row of the table."""
    began, runs = time.perf_counter(), []
    for seed in range(args.seeds):
        options = TrainOptions(max_epochs=epochs, learning_rate=rate, seed=seed, progress=False)
        runs.append(run(args, seed, batch_size, options))
    seconds = (time.perf_counter() - began) / args.seeds / epochs
    by_epoch = enumerate(zip(*runs, strict=True), start=1)
    points = [(epoch, sum(y for _, y in at) / len(at)) for epoch, at in by_epoch]
    return points, (batch_size, rate, epochs, f"{seconds:.2f}", f"{points[-1][1]:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="jsc-tiny")
    parser.add_argument("--dataset", default="jsc-sim")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5, help="number of runs to average")
    parser.add_argument("--out", type=Path, default=Path("mase_output/lab1_sweep"))
    args = parser.parse_args()
    title = f"{args.model} on {MaseDataModule(args.dataset).dataset_info.title}"

    rows, panels = [], []
    for what, choices in (
        ("batch sizes", [{"batch_size": b, "rate": 1e-3, "epochs": args.epochs} for b in BATCHES]),
        ("learning rates", [{"batch_size": 256, "rate": r, "epochs": args.epochs} for r in RATES]),
        ("epochs", [{"batch_size": 256, "rate": 1e-4, "epochs": n * args.epochs} for n in (1, 4)]),
    ):
        lines = {}
        for choice in choices:
            points, row = mean_run(args, **choice)
            rows.append(row)
            lines[", ".join(f"{k} {v:g}" for k, v in choice.items())] = points
        panels.append(Chart(f"{title}: {what}", "epoch", "validation accuracy", lines))

    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "curves.svg").write_text(page(panels), encoding="utf-8")
    headers = ("batch", "learning rate", "epochs", "s/epoch", "val_acc_epoch")
    print(f"{title}, means over {args.seeds} seeds\n")
    print(tabulate(rows, headers, "github", disable_numparse=True))
    print(f"\ncurves: {args.out / 'curves.svg'}")


if __name__ == "__main__":
    main()
